"""Two servers whose dispatcher has a memory, in plain Python, job by job.

Nothing here imports jaxlb. A dispatcher is told what happens: `moved(time, queue)` after each
change of the queues, `sent(time, server, job, share)`, `arrived(time, server, job)`; and it is
asked for `share(time, queue)`, that of the first server. Queues are divided by the scale.
"""

import math

import numpy as np

RECORD, ARRIVAL, START, END = range(4)


class Late:
    """Sees the queues `lag` ago."""

    def __init__(self, sensitivity, lag):
        self.sensitivity, self.lag, self.seen, self.coming = sensitivity, lag, (0.0, 0.0), []

    def moved(self, time, queue):
        self.coming.append((time + self.lag, queue))

    def share(self, time, queue):
        while self.coming and self.coming[0][0] <= time:
            self.seen = self.coming.pop(0)[1]
        return first_share(self.sensitivity, self.seen)

    def sent(self, time, server, job, share):
        pass

    def arrived(self, time, server, job):
        pass


class Aged:
    """Counts jobs in transit by their age."""

    def __init__(self, sensitivity, weight, unit):
        self.sensitivity, self.weight, self.unit, self.jobs = sensitivity, weight, unit, {}

    def moved(self, time, queue):
        pass

    def share(self, time, queue):
        load = list(queue)
        for server, since in self.jobs.values():
            load[server] += self.unit * self.weight(time - since)
        return first_share(self.sensitivity, load)

    def sent(self, time, server, job, share):
        self.jobs[job] = server, time

    def arrived(self, time, server, job):
        del self.jobs[job]


class Averaging:
    """Sees each queue's average, with weights that fade at `rate`."""

    def __init__(self, sensitivity, rate):
        self.sensitivity, self.rate, self.time = sensitivity, rate, 0.0
        self.average = self.queue = np.zeros(2)

    def moved(self, time, queue):
        fade = math.exp(-self.rate * (time - self.time))
        self.average = fade * self.average + (1 - fade) * self.queue
        self.time, self.queue = time, np.array(queue)

    def share(self, time, queue):
        self.moved(time, queue)
        return first_share(self.sensitivity, self.average)

    def sent(self, time, server, job, share):
        pass

    def arrived(self, time, server, job):
        pass


class Filter:
    """Estimates jobs in each phase; between events by the eigenvectors of what drives them."""

    def __init__(self, sensitivity, weights, gains, initial, generator, log, unit):
        self.sensitivity, self.weights, self.gains = sensitivity, np.array(weights), np.array(gains)
        self.initial, self.log, self.unit = np.array(initial), log, unit
        drift = generator + np.outer(generator.sum(axis=1), gains)
        self.roots, self.vectors = np.linalg.eig(drift)
        self.inverse = np.linalg.inv(self.vectors)
        self.jobs, self.time = np.zeros((2, len(gains))), 0.0

    def pass_to(self, time):
        decay = np.exp(self.roots * (time - self.time))
        self.jobs = ((self.jobs @ self.vectors) * decay @ self.inverse).real
        self.time = time

    def moved(self, time, queue):
        pass

    def share(self, time, queue):
        self.pass_to(time)
        return first_share(self.sensitivity, queue + self.jobs @ self.weights)

    def sent(self, time, server, job, share):
        self.pass_to(time)
        known = np.eye(2)[server] if self.log else np.array([share, 1 - share])
        self.jobs = self.jobs + self.unit * np.outer(known, self.initial)

    def arrived(self, time, server, job):
        self.pass_to(time)
        self.jobs[server] += self.unit * self.gains


def first_share(sensitivity, load):
    return 1 / (1 + math.exp(sensitivity * (load[0] - load[1])))


def path(dispatcher, times, scale, arrival, start, end, chance):
    """Counts in transit and in service, shape (times, servers, 2), from none at time zero.

    Job k is drawn its server by `chance[k]` at `arrival[k]`; its service begins and ends at
    `start[k]` and `end[k]`.
    """
    kinds = {RECORD: times, ARRIVAL: arrival, START: start, END: end}
    events = sorted(
        (time, kind, k) for kind, list_ in kinds.items() for k, time in enumerate(list_)
    )
    transit, queue, server, found = [0, 0], [0, 0], {}, []
    for time, kind, k in events:
        if kind == RECORD:
            found.append([[transit[s], queue[s]] for s in (0, 1)])
        elif kind == ARRIVAL:
            share = dispatcher.share(time, (queue[0] / scale, queue[1] / scale))
            server[k] = int(chance[k] >= share)
            transit[server[k]] += 1
            dispatcher.sent(time, server[k], k, share)
        else:
            if kind == START:
                transit[server[k]] -= 1
                dispatcher.arrived(time, server[k], k)
            queue[server[k]] += 1 if kind == START else -1
            dispatcher.moved(time, (queue[0] / scale, queue[1] / scale))
    return found
