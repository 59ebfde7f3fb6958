"""What a browser sees on this machine.

``server`` is the foundation (the contract is in its docstring); an application is a list of its
routes. ``predict`` is one: a bundle's answers to images.
"""
