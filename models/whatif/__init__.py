"""What-if simulation of traced training steps: how long would a step be if nobody were slow?"""
