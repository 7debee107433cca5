// Kernels that misbehave as programs do: bench/gpu/faults.py loads them into a process that PyTorch has set up.
// Plain device memory only; nothing here changes a setting of the GPU.

extern "C" __global__ void read_far(const int *at, int *out) {
    out[0] = at[1ull << 40];  // 4 TiB behind a small allocation: no page is there
}

extern "C" __global__ void read_misaligned(const int *at, int *out) {
    const volatile char *bytes = reinterpret_cast<const volatile char *>(at);
    out[0] = *reinterpret_cast<const volatile int *>(bytes + 1 + threadIdx.x);
}

extern "C" __global__ void trap_always(const int *at, int *out) {
    out[0] = at[0];
    asm volatile("trap;");
}

extern "C" __global__ void run_forever(const int *at, int *out) {
    const volatile int *flag = at;
    while (*flag == 0) {
        out[1] += 1;
    }
}

#ifndef __CUDACC_RTC__
// Launch one by its number on the default stream of the current context; return CUDA's error, 0 for none.
extern "C" int misbehave(int which, const int *at, int *out) {
    switch (which) {
        case 0: read_far<<<1, 1>>>(at, out); break;
        case 1: read_misaligned<<<1, 1>>>(at, out); break;
        case 2: trap_always<<<1, 1>>>(at, out); break;
        case 3: run_forever<<<1, 1>>>(at, out); break;
        default: return -1;
    }
    return static_cast<int>(cudaGetLastError());
}
#endif
