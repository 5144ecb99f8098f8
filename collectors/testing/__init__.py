"""Stand-ins for what a training host has, for the tests of this project and of others."""
