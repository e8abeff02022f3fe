"""What a trained model has learned, one question a file."""
