"""What is written for people to read: model cards in Markdown, pages in HTML, and text from outside made harmless.

Other rooms hand over plain facts: texts, numbers, rows of tables and pictures.
"""
