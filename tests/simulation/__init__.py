"""Seeded simulation: the real engine, many processes, one store, in one loop from one seed.

A *plan* lists the requests of clients and the faults. A *world* executes it: real gateways and
workers on the real SQL, virtual time that is also the store's clock, task steps in an order chosen
by the seed, a small model, clients that retry like SDKs. Processes crash at any write, freeze past
their lease and wake as zombies, replies of commits are lost, and the clock is set. Then the
*promises* are checked on the durable state, and a probe turn is sent to every live session.

To replay a world: HOLDFAST_SEED=17 pytest tests/simulation/test_worlds.py -k replayed
"""
