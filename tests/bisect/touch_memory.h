#pragma once

// Runs one thread that reads the word at a device address, or writes it, and waits. "cudaSuccess", or the error's name.
const char* touch_memory(void* word, bool write);
