"""Until when the workers may run, on the monotonic clock."""

import math
import time


class Lease:
    def __init__(self):
        self.until = math.inf

    def left(self):
        """Milliseconds for poll(), None without an end."""
        if self.until == math.inf:
            return None
        return max(0, math.ceil(1000 * (self.until - time.monotonic())))

    def ends(self):
        """Whether it is over; True once, since the next round comes with a new one."""
        over = time.monotonic() >= self.until
        if over:
            self.until = math.inf
        return over
