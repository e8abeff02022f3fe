"""Other people's data: D4RL files, DQN-replay files."""
