"""Seeded simulation: the real engine, many processes, one store, in one loop from one seed.

A *plan* says who asks what of whom, and what goes wrong. A *world* lives through it: real gateways
and workers on the real SQL, virtual time that is also the store's clock, task steps in an order of
the seed's choosing, a small model, clients that retry as SDKs do. Processes crash at any write,
freeze past their lease and wake as zombies, and commits go through unheard. Then the *promises*
are checked on what is durable, and a probe turn is sent to every live session.

To see a world again: HOLDFAST_SEED=17 pytest tests/simulation/test_worlds.py -k replayed
"""
