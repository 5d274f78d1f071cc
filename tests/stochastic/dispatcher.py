"""Slow paths of two servers whose dispatcher has a memory, in plain Python, job by job.

Nothing here imports jaxlb. A dispatcher is told what happens: `moved(time, queue)` after each
change of the queues, `sent(time, server, job, share)`, `arrived(time, server, job)`; and it is
asked for `share(time, queue)`, that of the first server. Queues are divided by the scale.
"""

import heapq
import itertools
import math

import numpy as np

ARRIVAL, START, END, RECORD = range(4)


class Late:
    """Sees the queues `lag` ago."""

    def __init__(self, sensitivity, lag):
        self.sensitivity, self.lag, self.seen, self.coming = sensitivity, lag, None, []

    def moved(self, time, queue):
        self.coming.append((time + self.lag, queue))
        if self.seen is None:
            self.seen = queue

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


def path(rng, dispatcher, times, scale, arrival_rate, delay, queue):
    """Counts in transit and in service, shape (times, servers, 2); the service rate is one.

    `delay(rng)`: one delay, s. `queue`: jobs in service at time zero, with none in transit.
    """
    transit, queue, found = [0, 0], list(queue), []
    number = itertools.count()
    events = [(rng.exponential(), next(number), END, s) for s in (0, 1) for _ in range(queue[s])]
    events += [(time, next(number), RECORD, 0) for time in times]
    events.append((rng.exponential(1 / (2 * scale * arrival_rate)), next(number), ARRIVAL, 0))
    heapq.heapify(events)
    dispatcher.moved(0.0, (queue[0] / scale, queue[1] / scale))
    while len(found) < len(times):
        time, job, kind, server = heapq.heappop(events)
        seen = queue[0] / scale, queue[1] / scale
        if kind == RECORD:
            found.append([[transit[s], queue[s]] for s in (0, 1)])
            continue
        if kind == ARRIVAL:
            share = dispatcher.share(time, seen)
            server = int(rng.uniform() >= share)
            transit[server] += 1
            job = next(number)
            dispatcher.sent(time, server, job, share)
            heapq.heappush(events, (time + delay(rng), job, START, server))
            after = time + rng.exponential(1 / (2 * scale * arrival_rate))
            heapq.heappush(events, (after, next(number), ARRIVAL, 0))
            continue
        if kind == START:
            transit[server] -= 1
            queue[server] += 1
            dispatcher.arrived(time, server, job)
            heapq.heappush(events, (time + rng.exponential(), next(number), END, server))
        else:
            queue[server] -= 1
        dispatcher.moved(time, (queue[0] / scale, queue[1] / scale))
    return found
