Opening GPU coredump: o/load.core
[Current focus set to CUDA kernel 0, grid 2, block (1,0,0), thread (37,0,0), device 0, sm 126, warp 1, lane 5]

CUDA Exception: Warp Illegal Address
The exception was triggered at PC 0x7f3ffb7a0ac0  probe::planted_load(char*)  (faults2.cu:20)
#0  0x00007f3ffb7a0ad0 in probe::planted_load<<<(2,1,1),(64,1,1)>>> () at faults2.cu:20
warning: 20	faults2.cu: No such file or directory
  Kernel Parent Dev Grid Status                             SMs Mask GridDim BlockDim Invocation            
*      0      -   0    2 Active 0x0040000000000000000000000000000000 (2,1,1) (64,1,1) probe::planted_load() 
#0  0x00007f3ffb7a0ad0 in probe::planted_load<<<(2,1,1),(64,1,1)>>> () at faults2.cu:20
Line 20 of "faults2.cu" starts at address 0x7f3ffb7a0a50 <_ZN5probe12planted_loadEPc+80> and ends at 0x7f3ffb7a0af0 <_ZN5probe12planted_loadEPc+240>.
Line 20 of "faults2.cu" starts at address 0x7f3ffb7a0a50 <_ZN5probe12planted_loadEPc+80> and ends at 0x7f3ffb7a0af0 <_ZN5probe12planted_loadEPc+240>.
