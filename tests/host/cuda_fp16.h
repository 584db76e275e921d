// Half precision on the CPU.
#pragma once

using __half = _Float16;
