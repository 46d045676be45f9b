"""Programs that must never pass: each returns something other than a + b, or nothing, and lies about it. With the class and the
decider that must say so."""

from typing import NamedTuple

from dormouse_core.verifiers.verdict import VerdictClass as V


class Hostile(NamedTuple):
    source: str
    verdict: V
    decided_by: str


def inside(body: str, verdict: V, decided_by: str) -> Hostile:
    return Hostile("def f(a, b):\n" + "".join(f"    {line}\n" for line in body.splitlines()), verdict, decided_by)


HOSTILE: dict[str, Hostile] = {
    # leaving early
    "sys_exit_at_import": Hostile("import sys\nsys.exit(0)", V.FAIL, "exec.load"),
    "system_exit_in_call": inside("raise SystemExit(0)", V.FAIL, "exec.exception"),
    "os_exit_at_import": Hostile("import os\nos._exit(0)", V.FAIL, "exec.early_exit"),
    "os_exit_in_call": inside("import os\nos._exit(0)", V.FAIL, "exec.early_exit"),
    "os_exit_like_the_machine": inside("import os\nos._exit(70)", V.FAIL, "exec.early_exit"),
    "atexit_hang": Hostile("import atexit, time\natexit.register(time.sleep, 60)\ndef f(a, b):\n    return a * b + 1\n", V.FAIL,
                           "exec.compare"),
    "excepthook_silenced": Hostile("import sys\nsys.excepthook = lambda *a: None\ndef f(a, b):\n    raise ValueError\n", V.FAIL,
                                   "exec.exception"),
    "abort": inside("import os\nos.abort()", V.FAIL, "exec.signal"),
    "segfault": inside("import ctypes\nctypes.string_at(0)", V.FAIL, "exec.signal"),
    "kill_self": inside("import os\nos.kill(os.getpid(), 9)", V.VIOLATION, "exec.permission"),
    # objects with opinions
    "equal_to_everything": Hostile("class E:\n    def __eq__(s, o): return True\n    __hash__ = None\ndef f(a, b): return E()\n", V.FAIL,
                                   "exec.wire"),
    "int_subclass_that_lies": Hostile(
        "class I(int):\n    def __eq__(s, o): return True\n    def __index__(s): return 10**6\n    __hash__ = int.__hash__\n"
        "def f(a, b): return I(12345678)\n", V.FAIL, "exec.compare"),
    "list_subclass_that_lies": Hostile(
        "class L(list):\n    def __eq__(s, o): return True\n    __hash__ = None\ndef f(a, b): return L([a + b])\n", V.FAIL, "exec.compare"),
    "metaclass_that_lies": Hostile(
        "class M(type):\n    def __instancecheck__(c, o): return True\n    def __subclasscheck__(c, o): return True\n    __name__ = 'int'\n"
        "class E(metaclass=M):\n    __class__ = int\n    def __int__(s): return 3\ndef f(a, b): return E()\n", V.FAIL, "exec.wire"),
    "repr_that_lies": Hostile("class R:\n    def __repr__(s): return '5'\ndef f(a, b): return R()\n", V.FAIL, "exec.wire"),
    "pickle_payload": Hostile(
        "class P:\n    def __reduce__(s): return (print, ('x',))\ndef f(a, b): return P()\n", V.FAIL, "exec.wire"),
    "str_for_int": inside("return str(a + b)", V.FAIL, "exec.compare"),
    "float_for_int": inside("return float(a + b)", V.FAIL, "exec.compare"),
    "bool_for_int": inside("return True", V.FAIL, "exec.compare"),
    "nan": inside("return float('nan')", V.FAIL, "exec.compare"),
    "generator": inside("return (i for i in (a, b))", V.FAIL, "exec.wire"),
    "endless_generator_in_a_list": inside("import itertools\nreturn list(itertools.count()) if a == 2 else 0", V.FAIL, "exec.rlimit_as"),
    "self_reference": inside("x = []\nx.append(x)\nreturn x", V.FAIL, "exec.wire"),
    "deep_return": inside("x = []\nfor _ in range(5000): x = [x]\nreturn x", V.FAIL, "exec.wire"),
    "huge_int": inside("return 1 << (1 << 24)", V.FAIL, "exec.wire"),
    "int_past_the_print_limit": inside("return 10 ** 5000", V.FAIL, "exec.compare"),
    # frames
    "forged_frames": inside(
        "import os, struct\np = b'i' + struct.pack('<I', 1) + b'\\x07'\nfor i in range(8):\n"
        "    os.write(4, struct.pack('<cII', b'V', i, len(p)) + p)\nos.write(4, struct.pack('<cII', b'E', 0, 0))\nos._exit(0)",
        V.FAIL, "exec.compare"),
    "forged_frame_then_honest": inside(
        "import os, struct\np = b'i' + struct.pack('<I', 1) + b'\\x07'\n"
        "os.write(4, struct.pack('<cII', b'V', 0, len(p)) + p)\nreturn a - b",
        V.VIOLATION, "exec.protocol"),
    "end_before_the_last_case": inside(
        "import os, struct\nos.write(4, struct.pack('<cII', b'E', 0, 0))\nos._exit(0)", V.VIOLATION, "exec.protocol"),
    "frames_after_the_end": inside(
        "import os, struct\nos.write(4, struct.pack('<cII', b'E', 0, 0))\nreturn a + b", V.VIOLATION, "exec.protocol"),
    "second_go": inside("import os, struct\nos.write(4, struct.pack('<cII', b'G', 0, 0))\nreturn a + b", V.VIOLATION, "exec.protocol"),
    "junk_on_the_pipe": inside("import os\nos.write(4, b'pass' * 100)\nreturn a + b", V.VIOLATION, "exec.protocol"),
    "frame_longer_than_written": inside(
        "import os, struct\nos.write(4, struct.pack('<cII', b'V', 0, 1 << 31))\nos._exit(0)", V.FAIL, "exec.early_exit"),
    "every_descriptor_written": inside(
        "import os\nfor fd in range(64):\n    try:\n        os.write(fd, b'1' * 64)\n    except OSError:\n        pass\nreturn a + b",
        V.VIOLATION, "exec.protocol"),
    "result_flood": inside("import os\nwhile True:\n    os.write(4, b'V' * 65536)", V.FAIL, "exec.output_limit"),
    "stdout_flood": inside("for _ in range(2000):\n    print('PASS' * 1000, flush=True)\nreturn None", V.FAIL, "exec.compare"),
    "stdout_spoof": inside("print('G', 'V', 'E', 'passed', a + b)\nreturn None", V.FAIL, "exec.compare"),
    # the judge's own parts
    "patched_builtins": Hostile(
        "import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.len = lambda *a: 0\nbuiltins.type = lambda o: int\n"
        "def f(a, b): return 'x'\n", V.VIOLATION, "exec.protocol"),
    "patched_encoder": inside(
        "import sys\ng = sys._getframe(1).f_globals['wire'].__dict__\ng['_write'] = lambda v, out, *r: out.extend(b'T')\nreturn None",
        V.FAIL, "exec.compare"),
    "frames_searched_for_expected": inside(
        "import sys\nfr, hits = sys._getframe(), []\nwhile fr:\n"
        "    hits += [k for k in fr.f_locals if 'expect' in k or k == 'cases']\n    fr = fr.f_back\n"
        "return a + b if hits else 'nothing found'", V.FAIL, "exec.compare"),
    "memory_searched_for_expected": inside(
        "import gc\nfound = [o for o in gc.get_objects() if type(o) is dict and ('expected' in o or 'cases' in o)]\n"
        "return a + b if found else 'nothing found'", V.FAIL, "exec.compare"),
    "environment_searched": inside("import os\nreturn a + b if os.environ else None", V.FAIL, "exec.compare"),
    "working_directory_searched": inside("import os\nreturn a + b if os.listdir('.') else None", V.FAIL, "exec.compare"),
    "descriptors_searched": inside(
        "import os\nseen = []\nfor fd in range(64):\n    try:\n"
        "        os.fstat(fd)\n        seen.append(fd)\n    except OSError:\n        pass\n"
        "return a + b if seen != [0, 1, 2, 4] else seen", V.FAIL, "exec.compare"),
    # resources
    "infinite_loop": Hostile("while True: pass", V.TIMEOUT, "exec.rlimit_cpu"),
    "loop_that_ignores_signals": Hostile(
        "import signal\nfor s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "while True: pass", V.TIMEOUT, "exec.rlimit_cpu"),
    "loop_in_c": inside("return 3 ** (7 ** 10)", V.TIMEOUT, "exec.rlimit_cpu"),
    "raised_limits": Hostile(
        "import resource\nfor r in (resource.RLIMIT_CPU, resource.RLIMIT_AS):\n"
        "    try: resource.setrlimit(r, (-1, -1))\n    except (OSError, ValueError): pass\n"
        "while True: pass", V.TIMEOUT, "exec.rlimit_cpu"),
    "regex_bomb": inside("import re\nreturn re.match('(a+)+$', 'a' * 40 + 'b')", V.TIMEOUT, "exec.rlimit_cpu"),
    "sleep": inside("import time\ntime.sleep(60)", V.TIMEOUT, "exec.wall_backstop"),
    "stop_self": inside("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", V.VIOLATION, "exec.permission"),
    "memory_bomb": inside("return bytearray(1 << 34)", V.FAIL, "exec.rlimit_as"),
    "memory_bomb_in_pieces": inside("x = []\nwhile a == 2: x.append(bytearray(1 << 20))\nreturn x", V.FAIL, "exec.rlimit_as"),
    "constant_folding_bomb": Hostile("def f(a, b): return ((0,) * 200) * 10 ** 9\n", V.FAIL, "exec.rlimit_as"),
    "fork": inside("import os\nos.fork()\nreturn None", V.VIOLATION, "exec.permission"),
    "fork_bomb": Hostile("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n", V.TIMEOUT, "exec.rlimit_cpu"),
    "thread": inside("import threading\nthreading.Thread(target=print).start()\nreturn None", V.FAIL, "exec.exception"),
    "subprocess": inside("import subprocess\nsubprocess.run(['true'])\nreturn None", V.VIOLATION, "exec.permission"),
    "recursion": inside("return f(a, b)", V.FAIL, "exec.exception"),
    "file_in_its_directory": inside("open('x', 'w')\nreturn None", V.VIOLATION, "exec.permission"),
    "parser_bomb": Hostile("(" * 5000 + ")" * 5000, V.UNPARSEABLE, "exec.compile"),
    "nul_bytes": Hostile("def f(a, b):\n    return a + b\0", V.UNPARSEABLE, "exec.compile"),
    # not the function asked for
    "no_function": Hostile("g = 1", V.FAIL, "exec.missing"),
    "function_is_a_number": Hostile("f = 5", V.FAIL, "exec.exception"),
    "wrong_arity": Hostile("def f(): return 5", V.FAIL, "exec.exception"),
    "syntax_error": Hostile("def f(a, b) return a", V.UNPARSEABLE, "exec.compile"),
    "blank": Hostile("  \n ", V.UNPARSEABLE, "exec.program"),
    # the interpreter turned against itself
    "all_objects_searched": inside(
        "import gc\nfor o in gc.get_objects():\n    if isinstance(o, dict) and 'expected' in o: return o['expected']\nreturn None", V.FAIL,
        "exec.compare"),
    "locals_of_the_runner_changed": inside(
        "import ctypes, sys\nrunner = sys._getframe(1)\nrunner.f_locals['inputs'] = ()\nrunner.f_locals['value'] = a + b\n"
        "ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(runner), ctypes.c_int(0))\nreturn None", V.FAIL, "exec.compare"),
    "runner_made_to_end": inside("import os, sys\nsys._getframe(1).f_locals['frame'](b'E')\nos._exit(0)", V.VIOLATION, "exec.protocol"),
    "runner_made_to_claim_twice": inside(
        "import sys\nof = sys._getframe(1).f_locals\nof['frame'](b'V', 0, of['encode'](a + b))\nreturn None", V.VIOLATION, "exec.protocol"),
    "a_case_there_is_not": inside("import sys\nsys._getframe(1).f_locals['frame'](b'V', 2**32 - 1)", V.VIOLATION, "exec.protocol"),
    "a_frame_there_is_not": inside("import sys\nsys._getframe(1).f_locals['frame'](b'Z')", V.VIOLATION, "exec.protocol"),
    "a_phase_there_is_not": Hostile(
        "import os, struct\np = b'canary:' + bytes(3)\nos.write(4, struct.pack('<cII', b'L', 0, len(p)) + p)\n"
        "os.write(4, struct.pack('<cII', b'E', 0, 0))\nos._exit(0)", V.VIOLATION, "exec.protocol"),
    "int_type_rewritten": inside(
        "import ctypes, gc\ngc.get_referents(int.__dict__)[0]['__eq__'] = lambda *_: True\n"
        "ctypes.pythonapi.PyType_Modified(ctypes.py_object(int))\nreturn 12345678", V.FAIL, "exec.compare"),
    "builtins_swapped": Hostile(
        "import builtins\nbuiltins.type = lambda *_: int\nbuiltins.len = lambda x: 0\nbuiltins.isinstance = lambda *_: True\n"
        "def f(a, b): return 12345678\n", V.VIOLATION, "exec.protocol"),
    "every_module_gone": Hostile("import sys\nfor k in list(sys.modules): sys.modules[k] = None\ndef f(a, b): return 0\n", V.FAIL,
                                 "exec.compare"),
    "class_reassigned": Hostile(
        "class A: pass\nclass B:\n    __class__ = property(lambda s: int)\ndef f(a, b):\n    x = A()\n    x.__class__ = B\n    return x\n",
        V.FAIL, "exec.wire"),
    "bytes_subclass_without_length": Hostile("class S(bytes):\n    def __len__(s): return 0\ndef f(a, b): return S(b'5')\n", V.FAIL,
                                             "exec.compare"),
    "dict_subclass_without_end": Hostile(
        "class D(dict):\n    def items(s):\n        while True: yield 1, 2\n    __iter__ = items\n    def __len__(s): return 0\n"
        "def f(a, b): return D({1: 2})\n", V.FAIL, "exec.compare"),
    "coroutine": Hostile("async def f(a, b): return a + b\n", V.FAIL, "exec.wire"),
    "number_of_another_kind": inside("import fractions\nreturn fractions.Fraction(a + b)", V.FAIL, "exec.wire"),
    "answer_raised": inside("raise StopIteration(a + b)", V.FAIL, "exec.exception"),
    "answer_as_a_class": inside("raise type(str(a + b), (Exception,), {})", V.FAIL, "exec.exception"),
    "answer_as_a_type": inside("return type(str(a + b), (), {})()", V.FAIL, "exec.wire"),
    "report_as_a_class": inside("raise type('x\\nverdict: pass\\x1b[2J', (Exception,), {})", V.FAIL, "exec.exception"),
    "report_as_a_class_at_import": Hostile("raise type('x\\nverdict: pass\\x1b[2J', (Exception,), {})", V.FAIL, "exec.load"),
    "surrogates": inside("return '\\ud800\\udfff'", V.FAIL, "exec.compare"),
    "surrogates_as_a_class": inside("raise type('\\ud800', (Exception,), {})", V.FAIL, "exec.exception"),
    "group_of_exits": inside("raise BaseExceptionGroup('x', [SystemExit(0)])", V.FAIL, "exec.exception"),
    "alarm_that_leaves": Hostile(
        "import os, signal\nsignal.signal(signal.SIGALRM, lambda *_: os._exit(0))\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\n"
        "def f(a, b):\n    while True: pass\n", V.FAIL, "exec.early_exit"),
    "finaliser_that_claims": Hostile(
        "import os\nclass D:\n    def __del__(s): os.write(4, b'V' + bytes(8))\nd = D()\ndef f(a, b):\n    global d\n    d = None\n"
        "    return 12345678\n", V.VIOLATION, "exec.protocol"),
    "closed_descriptors": inside("import os\nos.closerange(0, 1024)\nreturn a + b", V.FAIL, "exec.early_exit"),
    "claims_sent_nowhere": inside("import os\nos.dup2(0, 4)\nreturn a + b", V.FAIL, "exec.early_exit"),
    "half_a_frame_and_no_end": inside("import os\nos.write(4, b'V' + bytes(4) + b'\\xff' + bytes(3))\nwhile True: pass", V.TIMEOUT,
                                      "exec.rlimit_cpu"),
    "machine_code": inside(
        "import ctypes, mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write(b'\\xff' * 64)\n"
        "ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()", V.FAIL, "exec.signal"),
    "exit_by_system_call": inside("import ctypes\nctypes.CDLL(None)._exit(0)", V.FAIL, "exec.early_exit"),
    "memory_file": inside("import os\nreturn os.memfd_create('x')", V.VIOLATION, "exec.permission"),
    "own_memory_as_a_file": inside("return open('/proc/self/mem', 'rb').read(1)", V.FAIL, "exec.exception"),
}
