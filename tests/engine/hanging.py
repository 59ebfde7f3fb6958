"""FedRep at whose client 1 a worker stops answering, or the machine lacks something."""

import errno
import os
import signal
from pathlib import Path
from typing import ClassVar, Literal

from calibre.methods.fedrep import FedRep


class Hanging(FedRep):
    title: ClassVar[str] = "Hanging"
    name: str = "tests.engine.hanging:Hanging"
    fault: Literal["none", "stop once", "stop", "full once"] = "none"
    signs: str = ""  # a folder, where a client leaves a file when it has failed

    def local_update(self, server, personal, site):
        update = super().local_update(server, personal, site)
        sign = Path(self.signs, f"{server.round}")
        if site.client != 1 or self.fault == "none":
            return update
        if "once" in self.fault and sign.exists():
            return update
        sign.touch()
        if self.fault == "full once":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(sign))
        os.kill(os.getpid(), signal.SIGSTOP)
        return update
