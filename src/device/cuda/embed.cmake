# SPDX-License-Identifier: Apache-2.0
# cmake -DIN=<file> -DOUT=<file>.cpp -P embed.cmake: the bytes of a file as an array.
file(READ "${IN}" bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE "${OUT}" "extern \"C\" {\nextern const unsigned char anabranch_device_code[];\n"
                    "alignas(64) const unsigned char anabranch_device_code[] = {${bytes}};\n}\n")
