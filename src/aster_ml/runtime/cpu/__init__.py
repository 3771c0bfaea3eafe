"""The CPU: kernels compiled to native code in the process, and the threads that run them."""
