"""Section 4.3: BR-RCRL for discrete actions, on vectors or on pixels."""
