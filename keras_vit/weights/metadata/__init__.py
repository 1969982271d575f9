"""What files hold besides tensors: a note of this package, and the JSON files of the software that wrote them."""
