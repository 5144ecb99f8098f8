"""What is done about verdicts: policy, controller, guards, executors."""
