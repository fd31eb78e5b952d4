"""Compiles the lab's kernel once (a quarter of a minute), so that the processes of the tests find it on disk."""

from forebay.engine.capacity import roster_capacity
from forebay.engine.catalogue import PROFILES
from forebay.simulation.fast import FastFleet
from forebay.simulation.values import FleetRules, TierRules

PROFILE = PROFILES["llama-3.1-8b-h100"]
FastFleet(FleetRules(PROFILE, roster_capacity(PROFILE, 1.0, 0.05), (TierRules("all", 1.0, 0.05, 30.0),)), iter(())).run_until(1.0)
