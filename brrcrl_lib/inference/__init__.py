"""Section 4.2: choosing a target return, and the action that makes it likely."""
