def comptime(_while_compiling, otherwise):
    return otherwise()
