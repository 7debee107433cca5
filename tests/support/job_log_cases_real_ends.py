"""Real logs of torchrun on gloo: ranks that were killed, crashed, slept or ran out of memory."""

from collections.abc import Mapping

ENDS_TEXTS: Mapping[str, str] = {
    "torchrun-ok": """\
epoch 0 step 2 loss 0.7449
epoch 0 step 4 loss 0.9159
epoch 0 step 6 loss 0.8845
epoch 0 step 8 loss 0.5044
epoch 0 step 10 loss 1.2424
epoch 0 step 12 loss 0.9134
epoch 0 step 14 loss 0.8825
epoch 0 step 16 loss 1.1810
epoch 1 step 18 loss 0.6571
epoch 1 step 20 loss 1.0236
epoch 1 step 22 loss 1.3572
epoch 1 step 24 loss 0.7363
epoch 1 step 26 loss 0.8083
epoch 1 step 28 loss 1.0175
epoch 1 step 30 loss 0.9260
epoch 1 step 32 loss 0.9730
""",
    "torchrun-kill": """\
epoch 0 step 2 loss 1.0009
epoch 0 step 4 loss 0.8055
epoch 0 step 6 loss 1.1791
<backward of 2>
[rank2]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:19642. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
<backward of 0>
[rank0]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:3299. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
W1129 14:19:28.296000 27075 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 27415 closing signal SIGTERM
W1129 14:19:28.296000 27075 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 27418 closing signal SIGTERM
E1129 14:19:28.411000 27075 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 27416) of binary: /opt/venv/bin/python
<launcher's frames>
=======================================================
train.py FAILED
-------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_14:19:28
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 27415)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 27415
[2]:
  time      : 2026-11-29_14:19:28
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : -15 (pid: 27418)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 27418
-------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_14:19:28
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 27416)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 27416
=======================================================
""",
    "torchrun-segv": """\
epoch 0 step 2 loss 1.2450
epoch 0 step 4 loss 1.3726
epoch 0 step 6 loss 0.5338
<backward of 2>
[rank2]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:15498. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
<backward of 0>
[rank0]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:35033. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
W1129 14:20:00.175000 27714 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 27765 closing signal SIGTERM
W1129 14:20:00.176000 27714 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 27767 closing signal SIGTERM
E1129 14:20:00.346000 27714 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -11) local_rank: 1 (pid: 27766) of binary: /opt/venv/bin/python
<launcher's frames>
=======================================================
train.py FAILED
-------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_14:20:00
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 27765)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 27765
[2]:
  time      : 2026-11-29_14:20:00
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : -15 (pid: 27767)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 27767
-------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_14:20:00
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -11 (pid: 27766)  (SIGSEGV)
  error_file: <N/A>
  traceback : Signal 11 (SIGSEGV) received by PID 27766
=======================================================
""",
    "torchrun-term": """\
epoch 0 step 2 loss 0.9724
epoch 0 step 4 loss 1.3788
epoch 0 step 6 loss 1.6343
<backward of 2>
[rank2]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:12167. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
<backward of 0>
[rank0]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:5309. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
W1129 14:20:33.029000 28018 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 28246 closing signal SIGTERM
W1129 14:20:33.030000 28018 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 28248 closing signal SIGTERM
E1129 14:20:33.206000 28018 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -15) local_rank: 1 (pid: 28247) of binary: /opt/venv/bin/python
<launcher's frames>
=======================================================
train.py FAILED
-------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_14:20:33
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 28246)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 28246
[2]:
  time      : 2026-11-29_14:20:33
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : -15 (pid: 28248)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 28248
-------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_14:20:33
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -15 (pid: 28247)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 28247
=======================================================
""",
    "torchrun-memory": """\
epoch 0 step 2 loss 0.7214
epoch 0 step 4 loss 0.8947
epoch 0 step 6 loss 1.3789
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/user/train.py", line 51, in <module>
[rank1]:     main()
[rank1]:   File "/home/user/train.py", line 35, in main
[rank1]:     import resource; resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30)); torch.empty(1 << 36)
[rank1]: RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 274877906944 bytes. Error code 12 (Cannot allocate memory)
<backward of 0>
[rank0]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:57069. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
<backward of 2>
[rank2]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:35726. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
W1129 14:21:07.411000 28564 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 28716 closing signal SIGTERM
W1129 14:21:07.412000 28564 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 28718 closing signal SIGTERM
E1129 14:21:07.529000 28564 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 28717) of binary: /opt/venv/bin/python
<launcher's frames>
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_14:21:07
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 28716)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 28716
[2]:
  time      : 2026-11-29_14:21:07
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : -15 (pid: 28718)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 28718
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_14:21:07
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 28717)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
""",
    "torchrun-pymemory": """\
epoch 0 step 2 loss 0.6063
epoch 0 step 4 loss 0.9300
epoch 0 step 6 loss 0.7492
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/user/train.py", line 51, in <module>
[rank1]:     main()
[rank1]:   File "/home/user/train.py", line 37, in main
[rank1]:     import resource; resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30)); bytearray(1 << 36)
[rank1]: MemoryError
<backward of 0>
[rank0]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:13218. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
<backward of 2>
[rank2]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:13218. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
W1129 14:21:47.037000 29780 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 30180 closing signal SIGTERM
W1129 14:21:47.043000 29780 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 30182 closing signal SIGTERM
E1129 14:21:47.233000 29780 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 30181) of binary: /opt/venv/bin/python
<launcher's frames>
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_14:21:47
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 30180)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 30180
[2]:
  time      : 2026-11-29_14:21:47
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : -15 (pid: 30182)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 30182
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_14:21:47
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 30181)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
""",
    "torchrun-exit3": """\
epoch 0 step 2 loss 0.7310
epoch 0 step 4 loss 0.9450
epoch 0 step 6 loss 1.4832
<backward of 0>
[rank0]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:34209. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
<backward of 2>
[rank2]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:28345. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
W1129 14:22:59.275000 31829 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 32000 closing signal SIGTERM
W1129 14:22:59.276000 31829 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 32002 closing signal SIGTERM
E1129 14:22:59.549000 31829 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 3) local_rank: 1 (pid: 32001) of binary: /opt/venv/bin/python
<launcher's frames>
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_14:22:59
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 32000)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 32000
[2]:
  time      : 2026-11-29_14:22:59
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : -15 (pid: 32002)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 32002
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_14:22:59
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 3 (pid: 32001)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
""",
    "torchrun-workerkill": """\
epoch 0 step 2 loss 1.3016
epoch 0 step 4 loss 0.4675
epoch 0 step 6 loss 0.4097
epoch 0 step 8 loss 0.9354
[rank1]: Traceback (most recent call last):
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1291, in _try_get_data
[rank1]:     data = self._data_queue.get(timeout=timeout)
[rank1]:   File "/usr/local/lib/python3.11/multiprocessing/queues.py", line 122, in get
[rank1]:     return _ForkingPickler.loads(res)
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/multiprocessing/reductions.py", line 538, in rebuild_storage_fd
[rank1]:     fd = df.detach()
[rank1]:   File "/usr/local/lib/python3.11/multiprocessing/resource_sharer.py", line 57, in detach
[rank1]:     with _resource_sharer.get_connection(self._id) as conn:
[rank1]:   File "/usr/local/lib/python3.11/multiprocessing/resource_sharer.py", line 86, in get_connection
[rank1]:     c = Client(address, authkey=process.current_process().authkey)
[rank1]:   File "/usr/local/lib/python3.11/multiprocessing/connection.py", line 524, in Client
[rank1]:     answer_challenge(c, authkey)
[rank1]:   File "/usr/local/lib/python3.11/multiprocessing/connection.py", line 768, in answer_challenge
[rank1]:     message = connection.recv_bytes(256)         # reject large message
[rank1]:   File "/usr/local/lib/python3.11/multiprocessing/connection.py", line 216, in recv_bytes
[rank1]:     buf = self._recv_bytes(maxlength)
[rank1]:   File "/usr/local/lib/python3.11/multiprocessing/connection.py", line 430, in _recv_bytes
[rank1]:     buf = self._recv(4)
[rank1]:   File "/usr/local/lib/python3.11/multiprocessing/connection.py", line 395, in _recv
[rank1]:     chunk = read(handle, remaining)
[rank1]: ConnectionResetError: [Errno 104] Connection reset by peer

[rank1]: During handling of the above exception, another exception occurred:

[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/user/train.py", line 51, in <module>
[rank1]:     main()
[rank1]:   File "/home/user/train.py", line 26, in main
[rank1]:     for x, y in loader:
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 725, in __next__
[rank1]:     data = self._next_data()
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1505, in _next_data
[rank1]:     idx, data = self._get_data()
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1464, in _get_data
[rank1]:     success, data = self._try_get_data()
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1319, in _try_get_data
[rank1]:     with contextlib.ExitStack() as stack:
[rank1]:   File "/usr/local/lib/python3.11/contextlib.py", line 472, in __init__
[rank1]:     def __init__(self):

[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/_utils/signal_handling.py", line 73, in handler
[rank1]:     _error_if_any_worker_fails()
[rank1]: RuntimeError: DataLoader worker (pid 2853) is killed by signal: Killed.
<backward of 2>
[rank2]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:34491. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
<backward of 0>
[rank0]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:45202. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
W1129 14:26:42.820000 2125 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 2357 closing signal SIGTERM
W1129 14:26:42.822000 2125 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 2359 closing signal SIGTERM
E1129 14:26:43.513000 2125 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 2358) of binary: /opt/venv/bin/python
<launcher's frames>
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_14:26:43
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 2357)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 2357
[2]:
  time      : 2026-11-29_14:26:43
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : -15 (pid: 2359)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 2359
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_14:26:42
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 2358)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
""",
    "torchrun-hang": """\
epoch 0 step 2 loss 1.3567
epoch 0 step 4 loss 1.1747
epoch 0 step 6 loss 0.7506
<backward of 0>
[rank0]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 15000ms for recv operation to complete
<backward of 2>
[rank2]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 15000ms for send operation to complete
W1129 14:28:51.129000 4246 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 4609 closing signal SIGTERM
W1129 14:28:51.130000 4246 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 4616 closing signal SIGTERM
E1129 14:28:51.354000 4246 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 2 (pid: 4617) of binary: /opt/venv/bin/python
<launcher's frames>
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_14:28:51
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 4609)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 4609
[2]:
  time      : 2026-11-29_14:28:51
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -15 (pid: 4616)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 4616
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_14:28:51
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : 1 (pid: 4617)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
""",
    "torchrun-mismatch": """\
epoch 0 step 2 loss 1.5920
epoch 0 step 4 loss 0.8270
epoch 0 step 6 loss 1.9869
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/user/train.py", line 51, in <module>
[rank0]:     main()
[rank0]:   File "/home/user/train.py", line 43, in main
[rank0]:     else: dist.all_reduce(torch.zeros(8))
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83, in wrapper
[rank0]:     return func(*args, **kwargs)
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce
[rank0]:     work.wait()
[rank0]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 15000ms for recv operation to complete
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/user/train.py", line 51, in <module>
[rank1]:     main()
[rank1]:   File "/home/user/train.py", line 42, in main
[rank1]:     if rank == bad: dist.broadcast(torch.zeros(4), src=0)
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83, in wrapper
[rank1]:     return func(*args, **kwargs)
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3151, in broadcast
[rank1]:     work.wait()
[rank1]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 15000ms for recv operation to complete
[rank2]: Traceback (most recent call last):
[rank2]:   File "/home/user/train.py", line 51, in <module>
[rank2]:     main()
[rank2]:   File "/home/user/train.py", line 43, in main
[rank2]:     else: dist.all_reduce(torch.zeros(8))
[rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83, in wrapper
[rank2]:     return func(*args, **kwargs)
[rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce
[rank2]:     work.wait()
[rank2]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 15000ms for send operation to complete
W1129 14:27:50.109000 3019 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 3176 closing signal SIGTERM
W1129 14:27:50.110000 3019 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 3177 closing signal SIGTERM
E1129 14:27:50.383000 3019 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 2 (pid: 3178) of binary: /opt/venv/bin/python
<launcher's frames>
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_14:27:50
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 3176)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 3176
[2]:
  time      : 2026-11-29_14:27:50
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -15 (pid: 3177)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 3177
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_14:27:50
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : 1 (pid: 3178)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
""",
    "torchrun-crashes": """\
E1129 14:29:29.862000 5675 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -11) local_rank: 0 (pid: 5839) of binary: /opt/venv/bin/python
<launcher's frames>
======================================================
train.py FAILED
------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_14:29:29
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -11 (pid: 5840)  (SIGSEGV)
  error_file: <N/A>
  traceback : Signal 11 (SIGSEGV) received by PID 5840
[2]:
  time      : 2026-11-29_14:29:29
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : -11 (pid: 5841)  (SIGSEGV)
  error_file: <N/A>
  traceback : Signal 11 (SIGSEGV) received by PID 5841
------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_14:29:29
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -11 (pid: 5839)  (SIGSEGV)
  error_file: <N/A>
  traceback : Signal 11 (SIGSEGV) received by PID 5839
======================================================
""",
}
