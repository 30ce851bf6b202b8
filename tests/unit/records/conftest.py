from hypothesis import settings

# Examples are timed by the wall clock, which says nothing on a machine that does other things too.
settings.register_profile("kavka", deadline=None)
settings.load_profile("kavka")
