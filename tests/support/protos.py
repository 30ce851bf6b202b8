"""Generated Protobuf classes for tests: a file, and a file that it imports."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

FILES = {
    "kavka_shop_money.proto": """
syntax = "proto3";
package kavka.shop;
message Money { int64 cents = 1; string currency = 2; }
""",
    "kavka_shop_order.proto": """
syntax = "proto3";
package kavka.shop;
import "kavka_shop_money.proto";
import "google/protobuf/timestamp.proto";
message Customer { string name = 1; }
message Order {
  message Line { string item = 1; int32 count = 2; }
  int32 id = 1;
  Money price = 2;
  google.protobuf.Timestamp at = 3;
  repeated Line lines = 4;
  optional string note = 5;
  map<string, int32> tags = 6;
}
""",
}


def generated(folder: Path) -> tuple[Any, Any]:
    """Generate the classes and return the modules of money and order."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"--python_out={folder}", *FILES], check=True
    )
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("kavka_shop_money_pb2"), importlib.import_module("kavka_shop_order_pb2")
    finally:
        sys.path.remove(str(folder))
