Opening GPU coredump: o/jump.core
[Current focus set to CUDA kernel 0, grid 2, block (1,0,0), thread (37,0,0), device 0, sm 126, warp 1, lane 5]

CUDA Exception: Warp Illegal Instruction
The exception was triggered at PC 0x7f1f578c3e50
#0  0x00007f1f578c3e60 in ?? ()
  Kernel Parent Dev Grid Status                             SMs Mask GridDim BlockDim Invocation            
*      0      -   0    2 Active 0x0040000000000000000000000000000000 (2,1,1) (64,1,1) probe::planted_jump() 
#0  0x00007f1f578c3e60 in ?? ()
#1  0x00000000000000c0 in ??<<<(2,1,1),(64,1,1)>>> ()
No line number information available for address 0x7f1f578c3e50
No line number information available for address 0x7f1f578c3e60
