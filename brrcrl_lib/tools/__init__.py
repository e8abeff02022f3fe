"""What makes data and measures: collecting, publishing, importing, benchmarks, running notebooks."""
