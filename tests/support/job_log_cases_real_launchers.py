"""Real logs of the same jobs under `rankmend run`, srun, mpirun and accelerate."""

from collections.abc import Mapping

LAUNCHERS_TEXTS: Mapping[str, str] = {
    "rankmend-ok": """\
rankmend: start: attempt 1 from the beginning (no --checkpoint-dir: so does every restart, unless the ranks keep snapshots in memory)
[rank 0] epoch 0 step 2 loss 0.9098
[rank 0] epoch 0 step 4 loss 1.0542
[rank 0] epoch 0 step 6 loss 0.9356
[rank 0] epoch 0 step 8 loss 0.8901
[rank 0] epoch 0 step 10 loss 0.7184
[rank 0] epoch 0 step 12 loss 1.4126
[rank 0] epoch 0 step 14 loss 1.2869
[rank 0] epoch 0 step 16 loss 0.6687
[rank 0] epoch 1 step 18 loss 0.5020
[rank 0] epoch 1 step 20 loss 1.3405
[rank 0] epoch 1 step 22 loss 0.5805
[rank 0] epoch 1 step 24 loss 0.8679
[rank 0] epoch 1 step 26 loss 1.6499
[rank 0] epoch 1 step 28 loss 0.5222
[rank 0] epoch 1 step 30 loss 0.7824
[rank 0] epoch 1 step 32 loss 1.1190
rankmend: attempt 1 makes progress on 3 ranks
rankmend: done: every rank ended with exit code 0
""",
    "rankmend-import": """\
rankmend: start: attempt 1 from the beginning (no --checkpoint-dir: so does every restart, unless the ranks keep snapshots in memory)
[rank 0] Traceback (most recent call last):
[rank 0]   File "/home/user/train.py", line 3, in <module>
[rank 0]     if mode == "import": import flash_attn_missing
[rank 0]                          ^^^^^^^^^^^^^^^^^^^^^^^^^
[rank 0] ModuleNotFoundError: No module named 'flash_attn_missing'
[rank 1] the same traceback as rank 0's
[rank 2] the same traceback as rank 0's
rankmend: incident 91bb10f4-1: all 3 ranks ended alike: ModuleNotFoundError: No module named 'flash_attn_missing' (blamed: program)
rankmend: decision: give up: the first attempt ended before any step, with an error of the program on every rank: rank 0: ModuleNotFoundError: No module named 'flash_attn_missing'
rankmend: escalated: the first attempt ended before any step, with an error of the program on every rank: rank 0: ModuleNotFoundError: No module named 'flash_attn_missing'
""",
    "rankmend-kill": """\
rankmend: start: attempt 1 from the beginning (no --checkpoint-dir: so does every restart, unless the ranks keep snapshots in memory)
[rank 0] epoch 0 step 2 loss 0.7954
[rank 0] epoch 0 step 4 loss 0.6864
[rank 0] epoch 0 step 6 loss 0.7542
[rank 0] [rank0]: Traceback (most recent call last):
[rank 0] [rank0]:   File "/home/user/train.py", line 51, in <module>
[rank 0] [rank0]:     main()
[rank 0] [rank0]:   File "/home/user/train.py", line 28, in main
[rank 0] [rank0]:     opt.zero_grad(); loss.backward()
[rank 0] [rank0]:                      ^^^^^^^^^^^^^^^
[rank 0] [rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 623, in backward
[rank 0] [rank0]:     torch.autograd.backward(
[rank 0] [rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/autograd/__init__.py", line 395, in backward
[rank 0] [rank0]:     _engine_run_backward(
[rank 0] [rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 979, in _engine_run_backward
[rank 0] [rank0]:     return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass
[rank 0] [rank0]:            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
[rank 0] [rank0]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:31624. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
[rank 2] [rank2]: Traceback (most recent call last):
[rank 2] [rank2]:   File "/home/user/train.py", line 51, in <module>
[rank 2] [rank2]:     main()
[rank 2] [rank2]:   File "/home/user/train.py", line 28, in main
[rank 2] [rank2]:     opt.zero_grad(); loss.backward()
[rank 2] [rank2]:                      ^^^^^^^^^^^^^^^
[rank 2] [rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 623, in backward
[rank 2] [rank2]:     torch.autograd.backward(
[rank 2] [rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/autograd/__init__.py", line 395, in backward
[rank 2] [rank2]:     _engine_run_backward(
[rank 2] [rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 979, in _engine_run_backward
[rank 2] [rank2]:     return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass
[rank 2] [rank2]:            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
[rank 2] [rank2]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:64195: Connection reset by peer. This is typically caused by a remote worker hanging or bugs in the application. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
rankmend: attempt 1 makes progress on 3 ranks
rankmend: incident 041fe5c7-1: rank 1 failed after step 6: SIGKILL (blamed: rank)
rankmend: decision: give up: the budget is spent (0 restarts of this run, 0 are allowed): rank 1 failed after step 6: SIGKILL
rankmend: counts nothing against gpu-node-01
rankmend: evidence: 4 files, 4 kB
rankmend: escalated: the budget is spent (0 restarts of this run, 0 are allowed): rank 1 failed after step 6: SIGKILL
""",
    "rankmend-nan": """\
rankmend: start: attempt 1 from the beginning (no --checkpoint-dir: so does every restart, unless the ranks keep snapshots in memory)
[rank 0] epoch 0 step 2 loss 0.6351
[rank 0] epoch 0 step 4 loss 1.5850
[rank 0] epoch 0 step 6 loss 0.8137
[rank 1] [rank1]: Traceback (most recent call last):
[rank 1] [rank1]:   File "/home/user/train.py", line 51, in <module>
[rank 1] [rank1]:     main()
[rank 1] [rank1]:   File "/home/user/train.py", line 39, in main
[rank 1] [rank1]:     loss = loss * float("nan"); assert torch.isfinite(loss), f"loss is nan at step {step}"
[rank 1] [rank1]:                                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
[rank 1] [rank1]: AssertionError: loss is nan at step 6
rankmend: attempt 1 makes progress on 3 ranks
[rank 0] [rank0]: Traceback (most recent call last):
[rank 0] [rank0]:   File "/home/user/train.py", line 51, in <module>
[rank 0] [rank0]:     main()
[rank 0] [rank0]:   File "/home/user/train.py", line 28, in main
[rank 0] [rank0]:     opt.zero_grad(); loss.backward()
[rank 0] [rank0]:                      ^^^^^^^^^^^^^^^
[rank 0] [rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 623, in backward
[rank 0] [rank0]:     torch.autograd.backward(
[rank 0] [rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/autograd/__init__.py", line 395, in backward
[rank 0] [rank0]:     _engine_run_backward(
[rank 0] [rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 979, in _engine_run_backward
[rank 0] [rank0]:     return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass
[rank 0] [rank0]:            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
[rank 0] [rank0]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:44439. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
[rank 2] the same traceback as rank 0's
rankmend: incident 4977ecde-1: rank 1 failed after step 6: AssertionError: loss is nan at step 6 (blamed: program)
rankmend: decision: give up: the budget is spent (0 restarts of this run, 0 are allowed): rank 1: AssertionError: loss is nan at step 6
rankmend: counts nothing against gpu-node-01
rankmend: evidence: 5 files, 9 kB
rankmend: escalated: the budget is spent (0 restarts of this run, 0 are allowed): rank 1: AssertionError: loss is nan at step 6
rankmend: rank 1 had said:
Traceback (most recent call last):
  File "/home/user/train.py", line 51, in <module>
    main()
  File "/home/user/train.py", line 39, in main
    loss = loss * float("nan"); assert torch.isfinite(loss), f"loss is nan at step {step}"
AssertionError: loss is nan at step 6
""",
    "rankmend-hang": """\
rankmend: start: attempt 1 from the beginning (no --checkpoint-dir: so does every restart, unless the ranks keep snapshots in memory)
[rank 0] epoch 0 step 2 loss 1.0698
[rank 0] epoch 0 step 4 loss 0.7109
[rank 0] epoch 0 step 6 loss 0.8170
rankmend: attempt 1 makes progress on 3 ranks
rankmend: incident d41612a1-1: no rank advances; rank 1: 12 sections entered, others up to 14 (blamed: rank)
rankmend: decision: give up: the budget is spent (0 restarts of this run, 0 are allowed): no rank advances; rank 1: 12 sections entered, others up to 14
rankmend: counts nothing against gpu-node-01
rankmend: evidence: 9 files, 12 kB: host-stuck: rank 1 stands at /home/user/train.py:33 in main, while 2 of 3 ranks wait (confidence 0.60)
rankmend: escalated: the budget is spent (0 restarts of this run, 0 are allowed): no rank advances; rank 1: 12 sections entered, others up to 14
""",
    "srun-kill": """\
0: epoch 0 step 2 loss 1.3637
0: epoch 0 step 4 loss 1.0893
0: epoch 0 step 6 loss 1.1301
0: [rank0]: Traceback (most recent call last):
0: [rank0]:   File "/home/user/train.py", line 51, in <module>
0: [rank0]:     main()
0: [rank0]:   File "/home/user/train.py", line 28, in main
0: [rank0]:     opt.zero_grad(); loss.backward()
0: [rank0]:                      ^^^^^^^^^^^^^^^
0: [rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 623, in backward
0: [rank0]:     torch.autograd.backward(
0: [rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/autograd/__init__.py", line 395, in backward
0: [rank0]:     _engine_run_backward(
0: [rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 979, in _engine_run_backward
0: [rank0]:     return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass
0: [rank0]:            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
2: [rank2]: Traceback (most recent call last):
2: [rank2]:   File "/home/user/train.py", line 51, in <module>
2: [rank2]:     main()
2: [rank2]:   File "/home/user/train.py", line 28, in main
2: [rank2]:     opt.zero_grad(); loss.backward()
2: [rank2]:                      ^^^^^^^^^^^^^^^
2: [rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 623, in backward
2: [rank2]:     torch.autograd.backward(
2: [rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/autograd/__init__.py", line 395, in backward
2: [rank2]:     _engine_run_backward(
2: [rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 979, in _engine_run_backward
2: [rank2]:     return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass
2: [rank2]:            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
0: [rank0]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:9094: Connection reset by peer. This is typically caused by a remote worker hanging or bugs in the application. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
srun: error: node2: task 1: Killed
srun: launch/slurm: _step_signal: Terminating StepId=1908800.0
0: slurmstepd-node1: error: *** STEP 1908800.0 ON node1 CANCELLED AT 2026-11-29T14:33:49 ***
2: [rank2]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:9094: Connection reset by peer. This is typically caused by a remote worker hanging or bugs in the application. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
srun: error: node3: task 2: Terminated
srun: error: node1: task 0: Terminated
srun: Force Terminated StepId=1908800.0
""",
    "srun-import": """\
0: Traceback (most recent call last):
0:   File "/home/user/train.py", line 3, in <module>
0:     if mode == "import": import flash_attn_missing
0:                          ^^^^^^^^^^^^^^^^^^^^^^^^^
0: ModuleNotFoundError: No module named 'flash_attn_missing'
srun: error: node1: task 0: Exited with exit code 1
srun: launch/slurm: _step_signal: Terminating StepId=1908801.0
1: Traceback (most recent call last):
1:   File "/home/user/train.py", line 3, in <module>
1:     if mode == "import": import flash_attn_missing
1:                          ^^^^^^^^^^^^^^^^^^^^^^^^^
1: ModuleNotFoundError: No module named 'flash_attn_missing'
srun: error: node2: task 1: Exited with exit code 1
srun: error: node3: task 2: Terminated
srun: Force Terminated StepId=1908801.0
""",
    "srun-nan": """\
0: epoch 0 step 2 loss 1.5116
0: epoch 0 step 4 loss 0.6334
0: epoch 0 step 6 loss 0.7896
srun: job 1908802 queued and waiting for resources
srun: job 1908802 has been allocated resources
1: [rank1]: Traceback (most recent call last):
1: [rank1]:   File "/home/user/train.py", line 51, in <module>
1: [rank1]:     main()
1: [rank1]:   File "/home/user/train.py", line 39, in main
1: [rank1]:     loss = loss * float("nan"); assert torch.isfinite(loss), f"loss is nan at step {step}"
1: [rank1]:                                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
1: [rank1]: AssertionError: loss is nan at step 6
0: [rank0]: Traceback (most recent call last):
0: [rank0]:   File "/home/user/train.py", line 51, in <module>
0: [rank0]:     main()
0: [rank0]:   File "/home/user/train.py", line 28, in main
0: [rank0]:     opt.zero_grad(); loss.backward()
0: [rank0]:                      ^^^^^^^^^^^^^^^
0: [rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 623, in backward
0: [rank0]:     torch.autograd.backward(
0: [rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/autograd/__init__.py", line 395, in backward
0: [rank0]:     _engine_run_backward(
0: [rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 979, in _engine_run_backward
0: [rank0]:     return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass
0: [rank0]:            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
0: [rank0]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:2693. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
2: [rank2]: Traceback (most recent call last):
2: [rank2]:   File "/home/user/train.py", line 51, in <module>
2: [rank2]:     main()
2: [rank2]:   File "/home/user/train.py", line 28, in main
2: [rank2]:     opt.zero_grad(); loss.backward()
2: [rank2]:                      ^^^^^^^^^^^^^^^
2: [rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 623, in backward
2: [rank2]:     torch.autograd.backward(
2: [rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/autograd/__init__.py", line 395, in backward
2: [rank2]:     _engine_run_backward(
2: [rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 979, in _engine_run_backward
2: [rank2]:     return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass
2: [rank2]:            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
2: [rank2]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:28072. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
srun: error: node2: task 1: Exited with exit code 1
srun: launch/slurm: _step_signal: Terminating StepId=1908802.0
0: slurmstepd-node1: error: *** STEP 1908802.0 ON node1 CANCELLED AT 2026-11-29T14:34:16 ***
srun: error: node3: task 2: Terminated
srun: error: node1: task 0: Terminated
srun: Force Terminated StepId=1908802.0
""",
    "srun-hang": """\
0: epoch 0 step 2 loss 1.3516
0: epoch 0 step 4 loss 1.4145
0: epoch 0 step 6 loss 1.2722
srun: job 1908803 queued and waiting for resources
srun: job 1908803 has been allocated resources
0: [rank0]: Traceback (most recent call last):
0: [rank0]:   File "/home/user/train.py", line 51, in <module>
0: [rank0]:     main()
0: [rank0]:   File "/home/user/train.py", line 28, in main
0: [rank0]:     opt.zero_grad(); loss.backward()
0: [rank0]:                      ^^^^^^^^^^^^^^^
0: [rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 623, in backward
0: [rank0]:     torch.autograd.backward(
0: [rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/autograd/__init__.py", line 395, in backward
0: [rank0]:     _engine_run_backward(
0: [rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 979, in _engine_run_backward
0: [rank0]:     return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass
0: [rank0]:            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
0: [rank0]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 15000ms for recv operation to complete
2: [rank2]: Traceback (most recent call last):
2: [rank2]:   File "/home/user/train.py", line 51, in <module>
2: [rank2]:     main()
2: [rank2]:   File "/home/user/train.py", line 28, in main
2: [rank2]:     opt.zero_grad(); loss.backward()
2: [rank2]:                      ^^^^^^^^^^^^^^^
2: [rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 623, in backward
2: [rank2]:     torch.autograd.backward(
2: [rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/autograd/__init__.py", line 395, in backward
2: [rank2]:     _engine_run_backward(
2: [rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 979, in _engine_run_backward
2: [rank2]:     return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass
2: [rank2]:            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
2: [rank2]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 15000ms for send operation to complete
srun: error: node3: task 2: Exited with exit code 1
srun: launch/slurm: _step_signal: Terminating StepId=1908803.0
0: slurmstepd-node1: error: *** STEP 1908803.0 ON node1 CANCELLED AT 2026-11-29T14:35:03 ***
srun: error: node2: task 1: Terminated
srun: error: node1: task 0: Terminated
srun: Force Terminated StepId=1908803.0
""",
    "mpirun-kill": """\
[1,0]<stdout>:epoch 0 step 2 loss 1.1995[1,0]<stdout>:
[1,0]<stdout>:epoch 0 step 4 loss 0.9821
[1,0]<stdout>:epoch 0 step 6 loss 1.1225
--------------------------------------------------------------------------
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
--------------------------------------------------------------------------
[1,0]<stderr>:[rank0]: Traceback (most recent call last):
[1,0]<stderr>:[rank0]:   File "/home/user/train.py", line 51, in <module>
[1,0]<stderr>:[rank0]:     main()
[1,0]<stderr>:[rank0]:   File "/home/user/train.py", line 28, in main
[1,0]<stderr>:[rank0]:     opt.zero_grad(); loss.backward()
[1,0]<stderr>:[rank0]:                      ^^^^^^^^^^^^^^^
[1,0]<stderr>:[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 623, in backward
[1,0]<stderr>:[rank0]:     torch.autograd.backward(
[1,0]<stderr>:[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/autograd/__init__.py", line 395, in backward
[1,0]<stderr>:[rank0]:     _engine_run_backward(
[1,0]<stderr>:[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 979, in _engine_run_backward
[1,0]<stderr>:[rank0]:     return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass
[1,0]<stderr>:[rank0]:            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
[1,0]<stderr>:[rank0]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:41893: Connection reset by peer. This is typically caused by a remote worker hanging or bugs in the application. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
[1,2]<stderr>:[rank2]: Traceback (most recent call last):
[1,2]<stderr>:[rank2]:   File "/home/user/train.py", line 51, in <module>
[1,2]<stderr>:[rank2]:     main()
[1,2]<stderr>:[rank2]:   File "/home/user/train.py", line 28, in main
[1,2]<stderr>:[rank2]:     opt.zero_grad(); loss.backward()
[1,2]<stderr>:[rank2]:                      ^^^^^^^^^^^^^^^
[1,2]<stderr>:[rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 623, in backward
[1,2]<stderr>:[rank2]:     torch.autograd.backward(
[1,2]<stderr>:[rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/autograd/__init__.py", line 395, in backward
[1,2]<stderr>:[rank2]:     _engine_run_backward(
[1,2]<stderr>:[rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 979, in _engine_run_backward
[1,2]<stderr>:[rank2]:     return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass
[1,2]<stderr>:[rank2]:            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
[1,2]<stderr>:[rank2]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:63121. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
--------------------------------------------------------------------------
mpirun noticed that process rank 1 with PID 0 on node gpu-node-01 exited on signal 9 (Killed).
--------------------------------------------------------------------------
""",
    "mpirun-keyerror": """\
[1,0]<stderr>:Traceback (most recent call last):
[1,0]<stderr>:  File "/home/user/train.py", line 51, in <module>
[1,0]<stderr>:    main()
[1,0]<stderr>:  File "/home/user/train.py", line 18, in main
[1,0]<stderr>:    cfg = {"model": {}}; cfg["model"]["hidden_size"]
[1,0]<stderr>:                         ~~~~~~~~~~~~^^^^^^^^^^^^^^^
[1,0]<stderr>:KeyError: 'hidden_size'
[1,1]<stderr>:Traceback (most recent call last):
[1,1]<stderr>:  File "/home/user/train.py", line 51, in <module>
[1,1]<stderr>:    main()
[1,1]<stderr>:  File "/home/user/train.py", line 18, in main
[1,1]<stderr>:    cfg = {"model": {}}; cfg["model"]["hidden_size"]
[1,1]<stderr>:                         ~~~~~~~~~~~~^^^^^^^^^^^^^^^
[1,1]<stderr>:KeyError: 'hidden_size'
[1,2]<stderr>:Traceback (most recent call last):
[1,2]<stderr>:  File "/home/user/train.py", line 51, in <module>
[1,2]<stderr>:    main()
[1,2]<stderr>:  File "/home/user/train.py", line 18, in main
[1,2]<stderr>:    cfg = {"model": {}}; cfg["model"]["hidden_size"]
[1,2]<stderr>:                         ~~~~~~~~~~~~^^^^^^^^^^^^^^^
[1,2]<stderr>:KeyError: 'hidden_size'
--------------------------------------------------------------------------
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
--------------------------------------------------------------------------
--------------------------------------------------------------------------
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[24461,1],0]
  Exit code:    1
--------------------------------------------------------------------------
""",
    "accelerate-variable": """\
Traceback (most recent call last):
  File "/home/user/train.py", line 6, in <module>
    rank = int(os.environ["RANK"])
  File "<frozen os>", line 679, in __getitem__
KeyError: 'RANK'
Traceback (most recent call last):
  File "/opt/venv/bin/accelerate", line 8, in <module>
    sys.exit(main())
  File "/opt/venv/lib/python3.11/site-packages/accelerate/commands/accelerate_cli.py", line 50, in main
    args.func(args)
  File "/opt/venv/lib/python3.11/site-packages/accelerate/commands/launch.py", line 1413, in launch_command
    simple_launcher(args)
  File "/opt/venv/lib/python3.11/site-packages/accelerate/commands/launch.py", line 999, in simple_launcher
    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)
subprocess.CalledProcessError: Command '['/opt/venv/bin/python', 'train.py']' returned non-zero exit status 1.
""",
    "accelerate-import": """\
Traceback (most recent call last):
  File "/home/user/train.py", line 3, in <module>
    if mode == "import": import flash_attn_missing
ModuleNotFoundError: No module named 'flash_attn_missing'
Traceback (most recent call last):
  File "/opt/venv/bin/accelerate", line 8, in <module>
    sys.exit(main())
  File "/opt/venv/lib/python3.11/site-packages/accelerate/commands/accelerate_cli.py", line 50, in main
    args.func(args)
  File "/opt/venv/lib/python3.11/site-packages/accelerate/commands/launch.py", line 1413, in launch_command
    simple_launcher(args)
  File "/opt/venv/lib/python3.11/site-packages/accelerate/commands/launch.py", line 999, in simple_launcher
    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)
subprocess.CalledProcessError: Command '['/opt/venv/bin/python', 'train.py']' returned non-zero exit status 1.
""",
}
