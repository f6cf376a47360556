"""`tilesight.autotune` replaces `@tilelang.autotune` on a user's own TileLang kernel (docs/autotune.md).

autotune_decorator                 arguments of the decorator
autotuned, call_kernels            the decorated function; its kernels by call, tuned once
tune_task, recall, run_session     the task of one call, its recorded result, its session
user_function, user_template, user_operator    the user's kernel for the tuner
content                            a hash of the user's code
"""

from .autotune_decorator import autotune
from .autotuned import Autotuned
from .tuned import Tuned, TunedSource

__all__ = ["Autotuned", "Tuned", "TunedSource", "autotune"]
