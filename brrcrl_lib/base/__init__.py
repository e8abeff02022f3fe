"""What everything rests on: configurations, devices, files, errors."""
