"""Plans of actions that concern many machines, in the manner of ByteRobust (SOSP'25, arXiv 2509.16293)."""
