"""The live system in a box: gateway, controller and emulated engines, unmodified, on a virtual loop with seeded faults."""
