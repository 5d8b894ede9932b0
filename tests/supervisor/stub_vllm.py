#!/usr/bin/env python3
"""
A stand-in for an interpreter with vLLM: enough of its process behavior for the supervisor, in milliseconds.

As vLLM does: an API server that answers /health whatever its core does, a child ``VLLM::EngineCore`` in the same
session that outlives a killed API server, exit code 0 when the core dies, exit code 1 on a bad start, a clean end on
SIGTERM.

``python stub_vllm.py -c …``  answers as an interpreter that has the CPU build.
``python stub_vllm.py -m vllm.entrypoints.openai.api_server --port N …``  serves.
Environment: STUB_FAIL=1 fails the start; STUB_IGNORE_TERM=1 ignores SIGTERM; STUB_START_SECONDS delays /health;
STUB_ANSWER_SECONDS delays every POST; STUB_LOG_LINES are printed after the start.
"""

import http.server
import os
import signal
import subprocess
import sys
import threading
import time


class Health(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self):
        time.sleep(float(os.environ.get("STUB_ANSWER_SECONDS", "0")))
        body = b'{"choices": [{"index": 0, "text": "x", "finish_reason": "stop"}]}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def core():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        time.sleep(60)


def serve(arguments):
    if os.environ.get("STUB_FAIL"):
        print("ValueError: no such model", flush=True)
        return 1
    if os.environ.get("STUB_IGNORE_TERM"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["VLLM::EngineCore", __file__, "core"], executable=sys.executable)
    time.sleep(float(os.environ.get("STUB_START_SECONDS", "0")))
    port = int(arguments[arguments.index("--port") + 1])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def stop(*_):
        child.kill()
        os._exit(0)

    if not os.environ.get("STUB_IGNORE_TERM"):
        signal.signal(signal.SIGTERM, stop)
    print("Application startup complete", flush=True)
    for number in range(int(os.environ.get("STUB_LOG_LINES", "0"))):
        print(f"line {number} of a talkative engine", flush=True)
    child.wait()
    print("EngineDeadError", flush=True)
    os._exit(0)


def main():
    if sys.argv[1] == "-c":
        print('{"found": true, "cpu": true}')
        return 0
    if sys.argv[1] == "core":
        return core()
    return serve(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
