"""The outside world, one folder per thing. Adapters know ports, domain and spec, and one library of their own each."""
