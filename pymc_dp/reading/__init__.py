"""What a model says was released, in one form."""
