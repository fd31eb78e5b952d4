"""The parts of a world in a box, shipped: a virtual event loop with its own network, fakes of the ports, faults, checkers."""
