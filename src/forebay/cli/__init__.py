"""Words in, exit codes out: 0 done, 1 failed, 2 bad input. One small file per verb."""
