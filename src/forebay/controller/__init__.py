"""The control loop of a fleet: observe through ports, ask the policy, carry out its decision, tell the gateways."""
