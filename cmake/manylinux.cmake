# SPDX-License-Identifier: Apache-2.0
# The toolchain of wheels that other systems install: zig's clang for a machine of
# ANABRANCH_WHEEL_MACHINE, with the headers and symbols of glibc 2.28 (RHEL 8, Debian 10, Ubuntu 20.04
# and all later ones). Its libc++ is linked statically: see docs/installing.md.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR $ENV{ANABRANCH_WHEEL_MACHINE})
set(CMAKE_CXX_COMPILER $ENV{ANABRANCH_ZIG} c++)
set(CMAKE_CXX_COMPILER_TARGET $ENV{ANABRANCH_WHEEL_MACHINE}-linux-gnu.2.28)

# Of this system only the libraries that are headers: behind zig's own, so that no header of its
# glibc is taken.
execute_process(COMMAND uname -m OUTPUT_VARIABLE here OUTPUT_STRIP_TRAILING_WHITESPACE)
set(CMAKE_LIBRARY_ARCHITECTURE ${here}-linux-gnu)
set(CMAKE_CXX_FLAGS_INIT "-idirafter /usr/include")

# Symbols for debuggers are nine tenths of what is linked. The strip of this system may not know the
# other machine.
foreach(kind IN ITEMS EXE MODULE)
  set(CMAKE_${kind}_LINKER_FLAGS_INIT "-s")
endforeach()
