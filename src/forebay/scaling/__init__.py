"""How many replicas, why, and how one leaves: pure decisions over values, and the machine of orderly retreat."""
