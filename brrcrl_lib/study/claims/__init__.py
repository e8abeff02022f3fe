"""The paper's claims that experiments judge: its numbers, ours from the recorded rows, and the verdict."""
