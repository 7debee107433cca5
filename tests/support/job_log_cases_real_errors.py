"""Real logs of torchrun on gloo: errors of code, configuration, data and storage."""

from collections.abc import Mapping

ERRORS_TEXTS: Mapping[str, str] = {
    "torchrun-import": """\
Traceback (most recent call last):
  File "/home/user/train.py", line 3, in <module>
    if mode == "import": import flash_attn_missing
ModuleNotFoundError: No module named 'flash_attn_missing'
Traceback (most recent call last):
  File "/home/user/train.py", line 3, in <module>
    if mode == "import": import flash_attn_missing
ModuleNotFoundError: No module named 'flash_attn_missing'
Traceback (most recent call last):
  File "/home/user/train.py", line 3, in <module>
    if mode == "import": import flash_attn_missing
ModuleNotFoundError: No module named 'flash_attn_missing'
E1129 14:18:10.451000 26087 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 26259) of binary: /opt/venv/bin/python
<launcher's frames>
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_14:18:10
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 26260)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
[2]:
  time      : 2026-11-29_14:18:10
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : 1 (pid: 26261)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_14:18:10
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 26259)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
""",
    "torchrun-config": """\
usage: train.py [-h] --lr LR
train.py: error: the following arguments are required: --lr
usage: train.py [-h] --lr LR
train.py: error: the following arguments are required: --lr
usage: train.py [-h] --lr LR
train.py: error: the following arguments are required: --lr
W1129 14:18:30.962000 26330 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 26574 closing signal SIGTERM
E1129 14:18:31.035000 26330 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 2) local_rank: 0 (pid: 26573) of binary: /opt/venv/bin/python
<launcher's frames>
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_14:18:30
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : 2 (pid: 26575)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
[2]:
  time      : 2026-11-29_14:18:31
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 2 (pid: 26574)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_14:18:30
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : 2 (pid: 26573)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
""",
    "torchrun-keyerror": """\
Traceback (most recent call last):
  File "/home/user/train.py", line 51, in <module>
    main()
  File "/home/user/train.py", line 18, in main
    cfg = {"model": {}}; cfg["model"]["hidden_size"]
KeyError: 'hidden_size'
Traceback (most recent call last):
  File "/home/user/train.py", line 51, in <module>
    main()
  File "/home/user/train.py", line 18, in main
    cfg = {"model": {}}; cfg["model"]["hidden_size"]
KeyError: 'hidden_size'
Traceback (most recent call last):
  File "/home/user/train.py", line 51, in <module>
    main()
  File "/home/user/train.py", line 18, in main
    cfg = {"model": {}}; cfg["model"]["hidden_size"]
KeyError: 'hidden_size'
W1129 14:18:51.046000 26824 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 26908 closing signal SIGTERM
W1129 14:18:51.047000 26824 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 26910 closing signal SIGTERM
E1129 14:18:51.090000 26824 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 26909) of binary: /opt/venv/bin/python
<launcher's frames>
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_14:18:51
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 26908)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 26908
[2]:
  time      : 2026-11-29_14:18:51
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : -15 (pid: 26910)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 26910
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_14:18:51
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 26909)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
""",
    "torchrun-nan": """\
epoch 0 step 2 loss 1.2984
epoch 0 step 4 loss 0.8354
epoch 0 step 6 loss 0.9577
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/user/train.py", line 51, in <module>
[rank1]:     main()
[rank1]:   File "/home/user/train.py", line 39, in main
[rank1]:     loss = loss * float("nan"); assert torch.isfinite(loss), f"loss is nan at step {step}"
[rank1]: AssertionError: loss is nan at step 6
<backward of 0>
[rank0]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:40326. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
<backward of 2>
[rank2]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:40326. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
W1129 14:22:20.383000 31011 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 31324 closing signal SIGTERM
W1129 14:22:20.384000 31011 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 31326 closing signal SIGTERM
E1129 14:22:20.500000 31011 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 31325) of binary: /opt/venv/bin/python
<launcher's frames>
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_14:22:20
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 31324)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 31324
[2]:
  time      : 2026-11-29_14:22:20
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : -15 (pid: 31326)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 31326
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_14:22:20
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 31325)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
""",
    "torchrun-disk": """\
epoch 0 step 2 loss 0.6764
epoch 0 step 4 loss 0.7501
epoch 0 step 6 loss 0.6503
[rank0]: Traceback (most recent call last):
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", line 1003, in save
[rank0]:     _save(
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", line 1312, in _save
[rank0]:     zip_file.write_record(name, storage, num_bytes)
[rank0]: RuntimeError: basic_ios::clear: iostream error

[rank0]: During handling of the above exception, another exception occurred:

[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/user/train.py", line 51, in <module>
[rank0]:     main()
[rank0]:   File "/home/user/train.py", line 45, in main
[rank0]:     torch.save({"m": model.state_dict(), "big": torch.zeros(1 << 20)}, os.environ["CKPT"] + "/step6.pt")
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", line 1002, in save
[rank0]:     with _open_zipfile_writer(f) as opened_zipfile:
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", line 834, in __exit__
[rank0]:     self.file_like.write_end_of_file()
[rank0]: RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 4160 vs 4064
<backward of 1>
[rank1]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:49538. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
<backward of 2>
[rank2]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:49538. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
W1129 14:23:38.299000 32574 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 376 closing signal SIGTERM
W1129 14:23:38.299000 32574 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 377 closing signal SIGTERM
E1129 14:23:38.432000 32574 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 375) of binary: /opt/venv/bin/python
<launcher's frames>
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_14:23:38
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -15 (pid: 376)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 376
[2]:
  time      : 2026-11-29_14:23:38
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : -15 (pid: 377)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 377
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_14:23:38
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 375)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
""",
    "torchrun-perm": """\
epoch 0 step 2 loss 0.6343
epoch 0 step 4 loss 1.8947
epoch 0 step 6 loss 1.3504
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/user/train.py", line 51, in <module>
[rank0]:     main()
[rank0]:   File "/home/user/train.py", line 47, in main
[rank0]:     torch.save(model.state_dict(), "/proc/1/ckpt.pt")
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", line 1002, in save
[rank0]:     with _open_zipfile_writer(f) as opened_zipfile:
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", line 864, in _open_zipfile_writer
[rank0]:     return container(name_or_buffer)  # type: ignore[arg-type]
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", line 828, in __init__
[rank0]:     torch._C.PyTorchFileWriter(
[rank0]: RuntimeError: [enforce fail at inline_container.cc:747] . open file failed with strerror: No such file or directory
<backward of 1>
[rank1]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:7596. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
<backward of 2>
[rank2]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:7596. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
W1129 14:24:06.449000 897 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 947 closing signal SIGTERM
W1129 14:24:06.449000 897 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 948 closing signal SIGTERM
E1129 14:24:06.723000 897 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 946) of binary: /opt/venv/bin/python
<launcher's frames>
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_14:24:06
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -15 (pid: 947)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 947
[2]:
  time      : 2026-11-29_14:24:06
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : -15 (pid: 948)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 948
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_14:24:06
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 946)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
""",
    "torchrun-shape": """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/user/train.py", line 51, in <module>
[rank0]:     main()
[rank0]:   File "/home/user/train.py", line 27, in main
[rank0]:     loss = nn.functional.mse_loss(model(x), y)
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1778, in _wrapped_call_impl
[rank0]:     return self._call_impl(*args, **kwargs)
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1789, in _call_impl
[rank0]:     return forward_call(*args, **kwargs)
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/parallel/distributed.py", line 1890, in forward
[rank0]:     else self._run_ddp_forward(*inputs, **kwargs)
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/parallel/distributed.py", line 1715, in _run_ddp_forward
[rank0]:     return self.module(*inputs, **kwargs)  # type: ignore[index]
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1778, in _wrapped_call_impl
[rank0]:     return self._call_impl(*args, **kwargs)
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1789, in _call_impl
[rank0]:     return forward_call(*args, **kwargs)
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/container.py", line 253, in forward
[rank0]:     input = module(input)
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1778, in _wrapped_call_impl
[rank0]:     return self._call_impl(*args, **kwargs)
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1789, in _call_impl
[rank0]:     return forward_call(*args, **kwargs)
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 134, in forward
[rank0]:     return F.linear(input, self.weight, self.bias)
[rank0]: RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x32 and 31x4)
[rank2]: Traceback (most recent call last):
[rank2]:   File "/home/user/train.py", line 51, in <module>
[rank2]:     main()
[rank2]:   File "/home/user/train.py", line 27, in main
[rank2]:     loss = nn.functional.mse_loss(model(x), y)
[rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1778, in _wrapped_call_impl
[rank2]:     return self._call_impl(*args, **kwargs)
[rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1789, in _call_impl
[rank2]:     return forward_call(*args, **kwargs)
[rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/parallel/distributed.py", line 1890, in forward
[rank2]:     else self._run_ddp_forward(*inputs, **kwargs)
[rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/parallel/distributed.py", line 1715, in _run_ddp_forward
[rank2]:     return self.module(*inputs, **kwargs)  # type: ignore[index]
[rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1778, in _wrapped_call_impl
[rank2]:     return self._call_impl(*args, **kwargs)
[rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1789, in _call_impl
[rank2]:     return forward_call(*args, **kwargs)
[rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/container.py", line 253, in forward
[rank2]:     input = module(input)
[rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1778, in _wrapped_call_impl
[rank2]:     return self._call_impl(*args, **kwargs)
[rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1789, in _call_impl
[rank2]:     return forward_call(*args, **kwargs)
[rank2]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 134, in forward
[rank2]:     return F.linear(input, self.weight, self.bias)
[rank2]: RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x32 and 31x4)
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/user/train.py", line 51, in <module>
[rank1]:     main()
[rank1]:   File "/home/user/train.py", line 27, in main
[rank1]:     loss = nn.functional.mse_loss(model(x), y)
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1778, in _wrapped_call_impl
[rank1]:     return self._call_impl(*args, **kwargs)
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1789, in _call_impl
[rank1]:     return forward_call(*args, **kwargs)
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/parallel/distributed.py", line 1890, in forward
[rank1]:     else self._run_ddp_forward(*inputs, **kwargs)
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/parallel/distributed.py", line 1715, in _run_ddp_forward
[rank1]:     return self.module(*inputs, **kwargs)  # type: ignore[index]
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1778, in _wrapped_call_impl
[rank1]:     return self._call_impl(*args, **kwargs)
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1789, in _call_impl
[rank1]:     return forward_call(*args, **kwargs)
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/container.py", line 253, in forward
[rank1]:     input = module(input)
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1778, in _wrapped_call_impl
[rank1]:     return self._call_impl(*args, **kwargs)
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1789, in _call_impl
[rank1]:     return forward_call(*args, **kwargs)
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 134, in forward
[rank1]:     return F.linear(input, self.weight, self.bias)
[rank1]: RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x32 and 31x4)
W1129 14:24:56.171000 1267 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 1404 closing signal SIGTERM
W1129 14:24:56.172000 1267 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 1405 closing signal SIGTERM
E1129 14:24:56.301000 1267 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 1403) of binary: /opt/venv/bin/python
<launcher's frames>
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_14:24:56
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -15 (pid: 1404)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 1404
[2]:
  time      : 2026-11-29_14:24:56
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : -15 (pid: 1405)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 1405
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_14:24:56
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 1403)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
""",
    "torchrun-dataerror": """\
epoch 0 step 2 loss 1.1824
epoch 0 step 4 loss 0.7546
epoch 0 step 6 loss 1.4107
epoch 0 step 8 loss 0.9773
epoch 0 step 10 loss 1.2720
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/user/train.py", line 51, in <module>
[rank1]:     main()
[rank1]:   File "/home/user/train.py", line 26, in main
[rank1]:     for x, y in loader:
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 725, in __next__
[rank1]:     data = self._next_data()
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1529, in _next_data
[rank1]:     return self._process_data(data, worker_id)
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1567, in _process_data
[rank1]:     data.reraise()
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/_utils.py", line 794, in reraise
[rank1]:     raise exception
[rank1]: ValueError: Caught ValueError in DataLoader worker process 0.
[rank1]: Original Traceback (most recent call last):
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 374, in _worker_loop
[rank1]:     data = fetcher.fetch(index)  # type: ignore[possibly-undefined]
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", line 54, in fetch
[rank1]:     data = [self.dataset[idx] for idx in possibly_batched_index]
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", line 54, in <listcomp>
[rank1]:     data = [self.dataset[idx] for idx in possibly_batched_index]
[rank1]:   File "/home/user/train.py", line 10, in __getitem__
[rank1]:     if mode == "dataerror" and rank == bad and i == 40: raise ValueError("corrupt sample at index 40: invalid literal for int() with base 10: b'\\\\x00\\\\x00'")
[rank1]: ValueError: corrupt sample at index 40: invalid literal for int() with base 10: b'\\x00\\x00'

<backward of 2>
[rank2]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:6323. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
<backward of 0>
[rank0]: RuntimeError: [/src/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:24480. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️
W1129 14:25:36.356000 1657 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 1805 closing signal SIGTERM
W1129 14:25:36.357000 1657 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 1807 closing signal SIGTERM
E1129 14:25:36.548000 1657 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 1806) of binary: /opt/venv/bin/python
<launcher's frames>
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_14:25:36
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 1805)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 1805
[2]:
  time      : 2026-11-29_14:25:36
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : -15 (pid: 1807)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 1807
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_14:25:36
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 1806)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
""",
    "torchrun-port": """\
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "<frozen runpy>", line 88, in _run_code
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/run.py", line 1032, in <module>
    main()
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 367, in wrapper
    return f(*args, **kwargs)
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/run.py", line 1028, in main
    run(args)
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/run.py", line 1019, in run
    elastic_launch(
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 194, in __call__
    return launch_agent(
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 374, in launch_agent
    result = agent.run()
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/elastic/metrics/api.py", line 134, in wrapper
    result = f(*args, **kwargs)
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/elastic/agent/server/api.py", line 745, in run
    result = self._invoke_run(role)
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/elastic/agent/server/api.py", line 916, in _invoke_run
    self._initialize_workers(self._worker_group)
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/elastic/metrics/api.py", line 134, in wrapper
    result = f(*args, **kwargs)
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/elastic/agent/server/api.py", line 713, in _initialize_workers
    self._rendezvous(worker_group)
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/elastic/metrics/api.py", line 134, in wrapper
    result = f(*args, **kwargs)
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/elastic/agent/server/api.py", line 528, in _rendezvous
    rdzv_info = spec.rdzv_handler.next_rendezvous()
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py", line 67, in next_rendezvous
    self._store = TCPStore(  # type: ignore[call-arg]
torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29517, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use
""",
    "plain-port": """\
Traceback (most recent call last):
  File "/home/user/train.py", line 51, in <module>
    main()
  File "/home/user/train.py", line 19, in main
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=15))
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83, in wrapper
    return func(*args, **kwargs)
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 97, in wrapper
    func_return = func(*args, **kwargs)
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 1892, in init_process_group
    store, rank, world_size = next(rendezvous_iterator)
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/rendezvous.py", line 280, in _env_rendezvous_handler
    store = _create_c10d_store(
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/rendezvous.py", line 199, in _create_c10d_store
    return TCPStore(
torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29517, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use
""",
}
