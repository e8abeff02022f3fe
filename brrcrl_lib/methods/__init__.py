"""The methods, one file each: configuration, networks, loss, update, policy. `base.py` says what a method is."""
