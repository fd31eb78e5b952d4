"""The policy lab, composed: a spec and a trace become a scenario, policies by name are played in it over the cores, and summed up."""
