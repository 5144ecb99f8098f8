"""The policy: which action a verdict leads to, as a file of rules; and plans of actions that concern many machines."""
