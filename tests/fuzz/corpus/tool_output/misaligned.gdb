Opening GPU coredump: o/misaligned.core
[Current focus set to CUDA kernel 0, grid 2, block (1,0,0), thread (0,0,0), device 0, sm 126, warp 0, lane 0]

CUDA Exception: Warp Misaligned Address
The exception was triggered at PC 0x7f36477a0d20  void probe::run_body<probe::RmsNormBody<float, false> >(probe::RmsNormBody<float, false>)  (faults.cu:21 in _ZNK5probe11RmsNormBodyIfLb0EEclEv inlined from faults.cu:28)
#0  0x00007f36477a0da0 in probe::run_body<probe::RmsNormBody<float, false> ><<<(2,1,1),(64,1,1)>>> () at faults.cu:24 in _ZNK5probe11RmsNormBodyIfLb0EEclEv inlined from faults.cu:28
warning: 24	faults.cu: No such file or directory
  Dev PCI Bus/Dev ID        Name Description SM Type SMs Warps/SM Lanes/Warp Max Regs/Lane                      Active SMs Mask 
*   0        00:06.0 NVIDIA H200   GH100GL-A   sm_90 132       64         32           255 0x0040000000000000000000000000000000 
  Kernel Parent Dev Grid Status                             SMs Mask GridDim BlockDim Invocation                                           
*      0      -   0    2 Active 0x0040000000000000000000000000000000 (2,1,1) (64,1,1) probe::run_body<probe::RmsNormBody<float, false> >() 
  Ln  State         PC         ThreadIdx        Exception        
Device 0 SM 126 Warp 0
*  0 active 0x00007f36477a0da0   (0,0,0) Warp Misaligned Address 
#0  0x00007f36477a0da0 in probe::run_body<probe::RmsNormBody<float, false> ><<<(2,1,1),(64,1,1)>>> () at faults.cu:24 in _ZNK5probe11RmsNormBodyIfLb0EEclEv inlined from faults.cu:28
Unrecognized option: 'exceptions'.
Line 24 of "faults.cu" starts at address 0x7f36477a0d70 <_ZN5probe8run_bodyINS_11RmsNormBodyIfLb0EEEEEvT_+880> and ends at 0x7f36477a0dd0 <_ZN5probe8run_bodyINS_11RmsNormBodyIfLb0EEEEEvT_+976> inlined from _ZNK5probe11RmsNormBodyIfLb0EEclEv at line 28 of faults.cu.
$1 = (void (*)()) 0x7f36477a0d20 <void probe::run_body<probe::RmsNormBody<float, false> >(probe::RmsNormBody<float, false>)+800>
Line 21 of "faults.cu" starts at address 0x7f36477a0d20 <_ZN5probe8run_bodyINS_11RmsNormBodyIfLb0EEEEEvT_+800> and ends at 0x7f36477a0d40 <_ZN5probe8run_bodyINS_11RmsNormBodyIfLb0EEEEEvT_+832> inlined from _ZNK5probe11RmsNormBodyIfLb0EEclEv at line 28 of faults.cu.
void probe::run_body<probe::RmsNormBody<float, false> >(probe::RmsNormBody<float, false>) + 928 in section .text._ZN5probe8run_bodyINS_11RmsNormBodyIfLb0EEEEEvT_ of 
rc 0 330 ms
