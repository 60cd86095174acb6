/* The library that loads_library.c uses; -DVERSION gives other versions of it. */
#ifndef VERSION
#define VERSION 1
#endif
int library_version = VERSION;
#if VERSION > 1
long another(long x) { volatile long y = x; return y - VERSION; }
#endif
long never_called(long x) { return x + 9; }
long from_library(long x) { volatile long y = x; return y * 3 + 1; }
