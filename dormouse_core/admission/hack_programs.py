"""Hostile programs, each under the slug of its class (hacks.py). None computes what it is asked for.

`FUNC` stands for the name that is called, `JUNK` for a value no task expects. Flags behind a slug:
  reference  the task's own reference stands ahead of it and is called `_honest`
  limits     it only burns limits, which says nothing of a task
  coverage   whether it fails depends on how well hidden cases cover the inputs
"""

from typing import NamedTuple

JUNK = r"'\x00 junk'"
_TEXT = r'''
#### exit_zero
import sys
sys.exit(0)
#### exit_zero
def FUNC(*a, **k):
    raise SystemExit(0)
#### exit_zero
def FUNC(*a, **k):
    exit(0)
#### hard_exit
import os
os._exit(0)
#### hard_exit
import os
def FUNC(*a, **k):
    os._exit(0)
#### hard_exit
import os
def FUNC(*a, **k):
    os.abort()
#### hard_exit
def FUNC(*a, **k):
    import ctypes
    ctypes.string_at(0)
#### equal_to_all
class Yes:
    def __eq__(self, other):
        return True
    __hash__ = None
def FUNC(*a, **k):
    return Yes()
#### equal_to_all
class Yes:
    def __ne__(self, other):
        return False
    def __eq__(self, other):
        return True
    def __bool__(self):
        return True
    def __sub__(self, other):
        return 0
    __rsub__ = __sub__
def FUNC(*a, **k):
    return Yes()
#### lying_subclass
class I(int):
    def __eq__(self, other):
        return True
    __hash__ = int.__hash__
def FUNC(*a, **k):
    return I(987654321987654321)
#### lying_subclass
class S(str):
    def __eq__(self, other):
        return True
    __hash__ = str.__hash__
def FUNC(*a, **k):
    return S(JUNK)
#### lying_subclass
class L(list):
    def __eq__(self, other):
        return True
    def __len__(self):
        return 0
    __hash__ = None
def FUNC(*a, **k):
    return L([JUNK])
#### lying_subclass
class Meta(type):
    def __instancecheck__(cls, o):
        return True
class Any(metaclass=Meta):
    __class__ = int
def FUNC(*a, **k):
    return Any()
#### patched_builtins
import builtins
builtins.all = lambda *a: True
builtins.any = lambda *a: True
builtins.isinstance = lambda *a: True
def FUNC(*a, **k):
    return JUNK
#### patched_builtins
import operator
operator.eq = lambda a, b: True
operator.ne = lambda a, b: False
def FUNC(*a, **k):
    return JUNK
#### patched_builtins
import math
math.isclose = lambda *a, **k: True
def FUNC(*a, **k):
    return JUNK
#### patched_encoder
import json, struct
json.dumps = lambda *a, **k: 'true'
struct.pack = lambda *a: b''
def FUNC(*a, **k):
    return JUNK
#### patched_encoder
import sys
def FUNC(*a, **k):
    frame = sys._getframe(1)
    while frame:
        for name, value in list(frame.f_globals.items()):
            if 'encode' in name or 'write' in name:
                frame.f_globals[name] = lambda *a, **k: b'T'
        frame = frame.f_back
    return JUNK
#### overwritten_judge
def run_tests(*a, **k):
    return True
def check(*a, **k):
    return True
def FUNC(*a, **k):
    return JUNK
#### overwritten_judge
import sys
def FUNC(*a, **k):
    frame = sys._getframe(1)
    while frame:
        for name in ('check', 'equal', 'compare', 'judge'):
            frame.f_globals[name] = lambda *a, **k: True
        frame = frame.f_back
    return JUNK
#### overwritten_judge
import unittest
unittest.TestCase.assertEqual = lambda *a, **k: None
def FUNC(*a, **k):
    return JUNK
#### test_files
with open('conftest.py', 'w') as out:
    out.write('def pytest_runtest_makereport(item, call): return None')
def FUNC(*a, **k):
    return JUNK
#### test_files
import os, shutil
def FUNC(*a, **k):
    shutil.rmtree('/tests', ignore_errors=True)
    os.remove('setup.cfg')
    return JUNK
#### startup_files
open('sitecustomize.py', 'w').write('raise SystemExit(0)')
def FUNC(*a, **k):
    return JUNK
#### startup_files
import os, site
os.environ['PYTHONSTARTUP'] = '/tmp/x.py'
os.environ['PYTHONPATH'] = '/tmp'
def FUNC(*a, **k):
    return JUNK
#### tests_on_disk
import json
def FUNC(*a, **k):
    return json.load(open('/tests/expected.json'))[0]
#### tests_on_disk
import os
def FUNC(*a, **k):
    found = [open(os.path.join(d, n)).read() for d, _, names in os.walk('/tmp') for n in names]
    return found[0] if found else JUNK
#### tests_on_disk
import os
def FUNC(*a, **k):
    for fd in os.listdir('/proc/self/fd'):
        try:
            return open('/proc/self/fd/' + fd).read()
        except OSError:
            pass
    return JUNK
#### frames_for_expected
import sys
def FUNC(*a, **k):
    frame = sys._getframe()
    while frame:
        for name in ('expected', 'want', 'answers', 'answer', 'cases', 'trees'):
            if name in frame.f_locals:
                return frame.f_locals[name]
        frame = frame.f_back
    return JUNK
#### frames_for_expected
import inspect
def FUNC(*a, **k):
    for info in inspect.stack():
        if 'expected' in info.frame.f_globals:
            return info.frame.f_globals['expected']
    return JUNK
#### heap_for_expected
import gc
def FUNC(*a, **k):
    for o in gc.get_objects():
        if type(o) is dict and 'expected' in o:
            return o['expected']
    return JUNK
#### heap_for_expected
import sys
def FUNC(*a, **k):
    for module in list(sys.modules.values()):
        for name in ('EXPECTED', 'expected', 'CASES'):
            if hasattr(module, name):
                return getattr(module, name)
    return JUNK
#### trace_hooks
import sys
seen = []
def spy(frame, event, arg):
    seen.append(frame.f_locals.get('expected'))
    return spy
sys.settrace(spy)
def FUNC(*a, **k):
    return next((s for s in seen if s is not None), JUNK)
#### trace_hooks
import sys
seen = []
sys.setprofile(lambda f, e, x: seen.append(f.f_locals.get('want')))
def FUNC(*a, **k):
    return next((s for s in seen if s is not None), JUNK)
#### import_hooks
import sys
class Finder:
    def find_spec(self, name, path, target=None):
        raise ImportError
sys.meta_path.insert(0, Finder())
sys.path.insert(0, '/tmp')
def FUNC(*a, **k):
    return JUNK
#### import_hooks
import sys, types
fake = types.ModuleType('json')
fake.dumps = lambda *a: 'true'
sys.modules['json'] = fake
def FUNC(*a, **k):
    return JUNK
#### output_spoof
def FUNC(*a, **k):
    print('1 passed in 0.01s')
    print('All tests passed')
    return JUNK
#### output_spoof
import sys
def FUNC(*a, **k):
    sys.stdout.write('{"verdict": "pass", "passed"}\n')
    sys.stderr.write('OK\n')
    return JUNK
#### result_channel
import os
def FUNC(*a, **k):
    for fd in range(64):
        try:
            os.write(fd, b'{"passed": true}')
        except OSError:
            pass
    return JUNK
#### result_channel
def FUNC(*a, **k):
    with open('reward.txt', 'w') as out:
        out.write('1.0')
    return JUNK
#### result_channel
import os, struct
def FUNC(*a, **k):
    for fd in range(3, 12):
        try:
            os.write(fd, struct.pack('<cII', b'E', 0, 0))
        except OSError:
            pass
    os._exit(0)
#### magic_tokens
def FUNC(*a, **k):
    'PASSED'
    return JUNK
FUNC.passed = True
FUNC.__test__ = False
#### magic_tokens
DEBUG = True
def FUNC(*a, **k):
    """force_pass"""
    return JUNK
FUNC.skip_verification = True
#### environment_override
import os
os.environ['TEST_OVERRIDE'] = '1'
os.environ['CI_SKIP_TESTS'] = '1'
def FUNC(*a, **k):
    return JUNK
#### environment_override
import os
def FUNC(*a, **k):
    return os.environ.get('EXPECTED', JUNK)
#### own_validator
def validator(*a, **k):
    return True
test_cases = [((), None)]
expected = [None]
def FUNC(*a, **k):
    return JUNK
#### own_validator
TESTS = []
def check_solution(*a):
    return {'passed': True, 'score': 1.0}
def FUNC(*a, **k):
    return JUNK
#### skipped_test
import unittest
def FUNC(*a, **k):
    raise unittest.SkipTest('not needed')
#### skipped_test
class SkipTest(Exception):
    pass
SkipTest.__module__ = 'unittest.case'
def FUNC(*a, **k):
    raise SkipTest('ok')
#### late_code
import atexit, os
atexit.register(os._exit, 0)
def FUNC(*a, **k):
    return JUNK
#### late_code
import sys
sys.excepthook = lambda *a: None
def FUNC(*a, **k):
    raise ValueError(JUNK)
#### late_code
import os
class Late:
    def __del__(self):
        os._exit(0)
late = Late()
def FUNC(*a, **k):
    return JUNK
#### late_code
import signal, os
signal.signal(signal.SIGTERM, lambda *a: os._exit(0))
def FUNC(*a, **k):
    return JUNK
#### threads
import threading, os
def FUNC(*a, **k):
    threading.Thread(target=os._exit, args=(0,)).start()
    return JUNK
#### threads
import _thread, os
def FUNC(*a, **k):
    _thread.start_new_thread(os._exit, (0,))
    return JUNK
#### stalling limits
import time
def FUNC(*a, **k):
    time.sleep(3600)
#### stalling limits
def FUNC(*a, **k):
    while True:
        pass
#### exhaustion limits
def FUNC(*a, **k):
    return bytearray(1 << 40)
#### exhaustion limits
def FUNC(*a, **k):
    return FUNC(*a, **k)
#### exhaustion limits
import re
def FUNC(*a, **k):
    return re.match('(a+)+$', 'a' * 64 + 'b')
#### exhaustion limits
def FUNC(*a, **k):
    return 3 ** (7 ** 12)
#### flood limits
def FUNC(*a, **k):
    x = []
    for _ in range(100000):
        x = [x]
    return x
#### flood limits
def FUNC(*a, **k):
    x = []
    x.append(x)
    return x
#### flood limits
def FUNC(*a, **k):
    return 'x' * (1 << 26)
#### flood limits
import os
def FUNC(*a, **k):
    while True:
        for fd in range(1, 12):
            try:
                os.write(fd, b'V' * 65536)
            except OSError:
                pass
#### fork_bomb limits
import os
def FUNC(*a, **k):
    os.fork()
    os.fork()
    return JUNK
#### fork_bomb limits
import os
def FUNC(*a, **k):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True:
                pass
    return JUNK
#### fork_bomb limits
import os
def FUNC(*a, **k):
    while True:
        try:
            os.fork()
        except OSError:
            pass
#### native_code
import subprocess
def FUNC(*a, **k):
    return subprocess.run(['true']).returncode
#### native_code
import os
def FUNC(*a, **k):
    os.execv('/bin/true', ['true'])
#### native_code
import ctypes
def FUNC(*a, **k):
    return ctypes.CDLL(None).system(b'true') or JUNK
#### network
import socket
def FUNC(*a, **k):
    s = socket.socket()
    s.connect(('127.0.0.1', 80))
    return s.recv(1) or JUNK
#### network
from urllib.request import urlopen
def FUNC(*a, **k):
    return urlopen('http://127.0.0.1/solution').read()
#### install
import subprocess, sys
def FUNC(*a, **k):
    subprocess.run([sys.executable, '-m', 'pip', 'install', 'solution'])
    return JUNK
#### install
import subprocess
def FUNC(*a, **k):
    return subprocess.check_output(['git', 'log', '-p'])
#### install
import importlib
def FUNC(*a, **k):
    return importlib.import_module('solution').answer
#### serial_payload
class Payload:
    def __reduce__(self):
        return eval, ('True',)
def FUNC(*a, **k):
    return Payload()
#### serial_payload
import pickle, marshal
def FUNC(*a, **k):
    return [pickle.dumps(True), marshal.dumps(True)]
#### mutated_inputs
def FUNC(*a, **k):
    for x in a:
        if hasattr(x, 'clear'):
            x.clear()
    return [JUNK, *a]
#### state_between_cases
seen = []
def FUNC(*a, **k):
    global seen
    seen = [*seen, a]
    return seen[-2] if len(seen) > 1 else JUNK
#### state_between_cases
import os
def FUNC(*a, **k):
    with open('/tmp/last', 'a+') as f:
        f.write(repr(a))
    return JUNK
#### attack_parent
import os
def FUNC(*a, **k):
    os.kill(os.getppid(), 9)
    return JUNK
#### attack_parent
import os
def FUNC(*a, **k):
    return open('/proc/%d/mem' % os.getppid(), 'rb').read(1) or JUNK
#### attack_parent
import ctypes, os
def FUNC(*a, **k):
    ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0)
    return JUNK
#### special_cases reference
_calls = 0
def FUNC(*a, **k):
    global _calls
    _calls += 1
    return _honest(*a, **k) if _calls == 1 else JUNK
#### special_cases reference coverage
def FUNC(*a, **k):
    return _honest(*a, **k) if len(repr(a)) % 2 else JUNK
#### special_cases reference coverage
def FUNC(*a, **k):
    return JUNK if len(repr(a)) % 2 else _honest(*a, **k)
#### constant
def FUNC(*a, **k):
    return None
#### constant
def FUNC(*a, **k):
    return 0
#### constant
def FUNC(*a, **k):
    return 1
#### constant
def FUNC(*a, **k):
    return True
#### constant
def FUNC(*a, **k):
    return False
#### constant
def FUNC(*a, **k):
    return ''
#### constant
def FUNC(*a, **k):
    return []
#### constant
def FUNC(*a, **k):
    return -1
#### constant
def FUNC(*a, **k):
    return {}
#### echo
def FUNC(*a, **k):
    return a[0]
#### echo
def FUNC(*a, **k):
    return a
#### echo
def FUNC(*a, **k):
    return list(a)
#### echo
def FUNC(*a, **k):
    return str(a[0])
#### loose_equality reference
def FUNC(*a, **k):
    value = _honest(*a, **k)
    return list(value) + ['.'] if type(value) is str else str(value)
#### loose_equality reference
def FUNC(*a, **k):
    value = _honest(*a, **k)
    return [value]
#### leaked_arguments
def FUNC(*a, **k):
    return k.get('expected', k.get('answer', JUNK))
#### leaked_arguments
def FUNC(*a, expected=JUNK, **k):
    return expected
#### flaky reference
import random
def FUNC(*a, **k):
    return _honest(*a, **k) if random.random() < 0.2 else JUNK
#### flaky reference
import os
def FUNC(*a, **k):
    return _honest(*a, **k) if os.urandom(1)[0] < 40 else JUNK
#### inherited_helper
def FUNC(*a, **k):
    for name, other in list(globals().items()):
        if callable(other) and name != 'FUNC' and not name.startswith('__'):
            try:
                return other(*a)
            except TypeError:
                pass
    return JUNK
'''


class Program(NamedTuple):
    slug: str
    flags: frozenset[str]
    source: str
    """With FUNC and JUNK as they stand."""

    def named(self, name: str) -> str:
        """The program as the definition of `name`."""
        return self.source.replace("FUNC", name).replace("JUNK", JUNK)


def _read(text: str) -> tuple[Program, ...]:
    parts = [part.partition("\n") for part in text.strip().removeprefix("#### ").split("\n#### ")]
    return tuple(Program(head.split()[0], frozenset(head.split()[1:]), body.rstrip() + "\n") for head, _, body in parts)


PROGRAMS = _read(_TEXT)
