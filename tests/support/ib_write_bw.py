"""Stands in for perftest's `ib_write_bw` where there is no RDMA device: its command line, its words and its report, with data over TCP.

Options, messages and formats are those of perftest 4.5 and 26.04 (src/perftest_parameters.c, src/perftest_communication.c, src/write_bw.c). An
unknown option is refused, the device is looked up in a tree of sysfs, the exchange goes over the port of ``-p``, and the rate is what the
network took off the sender, so a shaped link shows. `make_perftest` puts it into a folder for PATH. What it reads of the environment:

    STANDIN_SYSFS   the tree of RDMA devices
    STANDIN_FAULT   what goes wrong, a `Fault`
"""

import contextlib
import fcntl
import getopt
import os
import select
import signal
import socket
import struct
import sys
import termios
import time
from enum import Enum
from pathlib import Path

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures/perftest"
SHORT = "w:y:p:d:i:m:s:n:t:u:S:x:c:q:I:o:M:r:Q:A:l:D:f:B:T:L:E:J:j:K:k:X:W:aFegzRvhbNVCHUOZP"
LONG = ["ib-dev=", "ib-port=", "port=", "duration=", "margin=", "CPU-freq", "gid-index=", "size=", "iters=", "qp=", "help",
        "version", "ipv6", "report_gbits", "bidirectional", "rdma_cm", "com_rdma_cm", "out_json", "out_json_file=", "output="]  # fmt: skip
NEW = ("bind_source_ip=", "ipv6-addr")  # from 23.07 on
LINE = "-" * 87
SIZE_BYTES = 65536
TX_DEPTH = 128


class Fault(Enum):
    NONE = ""
    MEMLOCK = "memlock"  # no memory can be pinned, at either end
    RETRY = "retry"  # no acknowledgement comes
    HANG = "hang"  # it never ends, and neither does its child
    HANG_AT_START = "hang at start"  # it never listens, or never connects
    NOT_A_NUMBER = "not a number"  # as after a broken clock
    FLOOD = "flood"  # it writes without end


def make_perftest(folder: Path, *, is_new: bool = True) -> Path:
    """Make a folder for PATH with the program; ``is_new``: it knows the options of 23.07."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "ib_write_bw"
    program.write_text(
        f"#!{sys.executable} -IS\nIS_NEW = {is_new}\nFIXTURES = {str(FIXTURES)!r}\n{_body()}"
    )
    program.chmod(0o755)
    return folder


def _body() -> str:
    here = Path(__file__).read_text(encoding="utf-8")
    return here.replace("FIXTURES = Path(__file__)", "_UNUSED = Path(__file__)", 1)


def main() -> int:
    is_new = bool(globals().get("IS_NEW", True))
    try:
        pairs, rest = getopt.gnu_getopt(sys.argv[1:], SHORT, [*LONG, *(NEW if is_new else ())])
    except getopt.GetoptError as error:
        sys.stderr.write(f"{sys.argv[0]}: unrecognized option '--{error.opt}'\n")
        sys.stderr.write(" Invalid Command or flag.\n Please check command line and run again.\n\n")
        sys.stderr.write(" Parser function exited with Error\n")
        return 1
    options = dict(pairs)
    if "--help" in options or "-h" in options:
        print(Path(FIXTURES, "help.txt").read_text(encoding="utf-8"))
        if is_new:
            print(
                "      --bind_source_ip  Source IP of the interface used for connection establishment."
            )
            print(
                "      --ipv6-addr (SYMMETRIC) Use IPv6 address for parameters negotiation. Default is IPv4"
            )
        return 1
    seconds = int(options["-D"])
    if problem := refusal(seconds, options["-d"], options.get("-i", "1")):
        sys.stderr.write(problem)
        return 1
    fault = Fault(os.environ.get("STANDIN_FAULT", ""))
    if fault is Fault.HANG_AT_START:
        hang()
    bound = options.get("--bind_source_ip", "")
    if rest:
        return run_client(options, rest[0], bound, seconds, fault)
    return run_server(options, bound, fault)


def refusal(seconds: int, device: str, port: str) -> str:
    """Return what the real program says where it can't go on."""
    devices = Path(os.environ.get("STANDIN_SYSFS", "/nowhere")) / "class/infiniband"
    if seconds <= 0:
        return " Duration period must be positive\n Parser function exited with Error\n"
    if not devices.is_dir():
        return Path(FIXTURES, "no-device.txt").read_text(encoding="utf-8")
    if not (devices / device).is_dir():
        return f"IB device {device} not found\n Unable to find the Infiniband/RoCE device\n"
    if not (devices / device / "ports" / port / "state").read_text().startswith("4:"):
        return f" Port number {port} state is Down\n Couldn't set the link layer\n Couldn't get context for the device\n"
    return ""


def hang() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.fork()
    while True:
        signal.pause()


def run_server(options: "dict[str, str]", bound: str, fault: Fault) -> int:
    stars = "*" * 36
    print(f"\n{stars}\n* Waiting for client to connect... *\n{stars}", flush=True)
    number = int(options.get("-p", "18515"))
    if not is_of_family(options, bound):
        return 1
    with socket.socket(family_of(options)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((bound, number))
        except OSError:
            sys.stderr.write(
                f"Couldn't listen to port {number}\nUnable to open file descriptor for socket connection\n"
            )
            sys.stderr.write(" Unable to init the socket connection\n")
            return 1
        listener.listen(1)
        exchange, _peer = listener.accept()
    own = exchange.getsockname()[0], 0
    with exchange, socket.create_server(own, family=family_of(options)) as data_listener:
        begin(fault)
        exchange.sendall(struct.pack("!H", data_listener.getsockname()[1]))
        try:
            if data_listener not in select.select([data_listener, exchange], [], [])[0]:
                raise ConnectionResetError("the client is gone")
            data = data_listener.accept()[0]
            print_test(options)
            with contextlib.suppress(ConnectionResetError):  # the client throws away what is queued
                while data.recv(1 << 17):
                    pass
            report = receive_exactly(exchange, 24)
            exchange.sendall(b"\1")
        except OSError:
            sys.stderr.write(
                "ethernet_read_keys: Couldn't read remote address\n Unable to read to socket/rdma_cm\n"
            )
            sys.stderr.write(" Failed to exchange data between server and clients\n")
            return 1
    print_row(*struct.unpack("!qdd", report))
    return 0


def run_client(
    options: "dict[str, str]", server: str, bound: str, seconds: int, fault: Fault
) -> int:
    number = int(options.get("-p", "18515"))
    if not (is_of_family(options, server) and is_of_family(options, bound)):
        return 1
    try:
        exchange = socket.create_connection(
            (server, number), source_address=(bound, 0) if bound else None
        )
    except OSError:
        sys.stderr.write(
            f"Couldn't connect to {server}:{number}\nUnable to open file descriptor for socket connection\n"
        )
        sys.stderr.write(" Unable to init the socket connection\n")
        return 1
    with exchange:
        begin(fault)
        try:
            data_port = struct.unpack("!H", receive_exactly(exchange, 2))[0]
            data = socket.create_connection((server, data_port))
        except OSError:
            sys.stderr.write(
                "ethernet_read_keys: Couldn't read remote address\n Unable to read from socket/rdma_cm\n"
            )
            sys.stderr.write("Failed to exchange data between server and clients\n")
            return 1
        print_test(options)
        if fault is Fault.RETRY:
            sys.stderr.write(
                " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\nscnt=128, ccnt=0\n"
            )
            sys.stderr.write(" Failed to complete run_iter_bw function successfully\n")
            return 1
        iterations, average = send(data, seconds)
        if fault is Fault.NOT_A_NUMBER:
            average = float("nan")
        print_row(iterations, average, average)
        exchange.sendall(struct.pack("!qdd", iterations, average, average))
        receive_exactly(exchange, 1)
    return 0


def family_of(options: "dict[str, str]") -> int:
    return socket.AF_INET6 if "--ipv6-addr" in options else socket.AF_INET


def is_of_family(options: "dict[str, str]", address: str) -> bool:
    """Say what the real program says of an address of the other family."""
    family = family_of(options)
    try:
        socket.getaddrinfo(address or None, 1, family)
    except OSError as error:
        sys.stderr.write(f"{error.strerror} for ai_family: {family:x} service: {address} port: 1\n")
        sys.stderr.write(
            "Problem in resolving basic address and port\n Unable to init the socket connection\n"
        )
        return False
    return True


def begin(fault: Fault) -> None:
    """Do what comes after the connection: the real one sleeps for a second here, and pins its memory."""
    select.select([], [], [], 0.1)
    if fault is Fault.HANG:
        hang()
    if fault is Fault.MEMLOCK:
        sys.stderr.write(
            "Couldn't allocate MR\nfailed to create mr\n Couldn't create IB resources\n"
        )
        sys.exit(1)
    while fault is Fault.FLOOD:
        print("x" * 65536, flush=True)


def send(data: socket.socket, seconds: int) -> "tuple[int, float]":
    """Send for so long; return messages and MiB/s between the margins, as the network took them."""
    block, margin = bytes(SIZE_BYTES), seconds // 4
    sent, marks, began_s = 0, [], time.monotonic()
    edges = [began_s + margin, began_s + seconds - margin]
    data.settimeout(seconds + 10)
    while (now_s := time.monotonic()) < began_s + seconds:
        if len(marks) < 2 and now_s >= edges[len(marks)]:
            marks.append((taken(data, sent), now_s))
        sent += data.send(block)
    if len(marks) < 2:
        marks.append((taken(data, sent), time.monotonic()))
    data.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    data.close()
    (first, at_s), (last, until_s) = marks
    return (last - first) // SIZE_BYTES, (last - first) / (until_s - at_s) / (1 << 20)


def taken(data: socket.socket, sent: int) -> int:
    queued = struct.unpack("i", fcntl.ioctl(data, termios.TIOCOUTQ, b"\0" * 4))[0]
    return sent - int(queued)


def print_test(options: "dict[str, str]") -> None:
    print(LINE)
    print("                    RDMA_Write BW Test")
    print(f" Dual-port       : OFF\t\tDevice         : {options['-d']}")
    print(" Number of qps   : 1\t\tTransport type : IB")
    print(" Connection type : RC\t\tUsing SRQ      : OFF")
    print(f" TX depth        : {TX_DEPTH}\n CQ Moderation   : 100\n Mtu             : 1024[B]")
    print(f" Link type       : Ethernet\n GID index       : {options.get('-x', '0')}\n{LINE}")
    print(" local address: LID 0000 QPN 0x0187 PSN 0x5bd8ec RKey 0x1fffbd VAddr 0x007f8c4a6ce000")
    print(" remote address: LID 0000 QPN 0x0188 PSN 0x21c4a1 RKey 0x1fffbe VAddr 0x007f1c3a6ce000")
    print(LINE)
    print(
        " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]",
        flush=True,
    )


def print_row(iterations: int, peak: float, average: float) -> None:
    rate = average * (1 << 20) / SIZE_BYTES / 1e6
    print(
        f" {SIZE_BYTES:<7d}    {iterations:<10d}       {peak:<7.2f}            {average:<7.2f}\t\t     {rate:<7.6f}"
    )
    print(LINE, flush=True)


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionResetError("the other end has closed")
        data += part
    return data


if __name__ == "__main__":
    sys.exit(main())
