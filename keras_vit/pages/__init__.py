"""Output for readers: model cards in Markdown, pages in HTML, and escaped text from outside.

Other rooms pass plain facts: texts, numbers, rows of tables and pictures.
"""
