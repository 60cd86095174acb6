"""Functions for simulated programs, in assembly; each takes one number and returns one.

A line that begins with ``.byte`` has the bytes of what the assembler does not know.
"""

FUNCTIONS = {
    "twice": """
        push rbp
        mov rbp, rsp
        lea eax, [rdi+rdi]
        pop rbp
        ret
    """,
    "sum_to": """
        xor eax, eax
        test edi, edi
        je short sum_done
    sum_more:
        add eax, edi
        dec edi
        jne short sum_more
    sum_done:
        ret
    """,
    "fib": """
        push rbx
        push rbp
        mov ebx, edi
        cmp edi, 2
        jb short fib_small
        lea edi, [rbx-1]
        call fib
        mov ebp, eax
        lea edi, [rbx-2]
        call fib
        add eax, ebp
        jmp short fib_done
    fib_small:
        mov eax, ebx
    fib_done:
        pop rbp
        pop rbx
        ret
    """,
    "tail": """
        lea edi, [rdi+1]
        jmp twice
    """,
    "count_down": """
        inc eax
        dec edi
        jne count_down
        ret
    """,
    "collatz": """
        xor eax, eax
        jmp short collatz_test
    collatz_odd:
        lea rdi, [rdi+rdi*2+1]
    collatz_next:
        inc eax
    collatz_test:
        cmp rdi, 1
        jbe short collatz_done
        test dil, 1
        jne short collatz_odd
        shr rdi, 1
        jmp short collatz_next
    collatz_done:
        ret
    """,
    "carries": """
        mov rax, -1
        mov rdx, rdi
        xor ecx, ecx
        add rax, rdi
        adc rcx, rdx
        sbb rdx, 3
        setb al
        movzx eax, al
        add rax, rcx
        xor rax, rdx
        ret
    """,
    "red_zone": """
        mov [rsp-8], rdi
        mov [rsp-16], rdi
        mov rax, [rsp-8]
        add rax, [rsp-16]
        ret
    """,
    "vectors": """
        movd xmm0, edi
        movdqa xmm1, xmm0
        paddd xmm0, xmm1
        movd eax, xmm0
        ret
    """,
    "own_address": """
        lea rax, [rel own_address]
        lea rcx, [rel twice]
        sub rax, rcx
        add rax, rdi
        ret
    """,
    "nothing": """
        ret
    """,
    "zero": """
        xor eax, eax
        ret
    """,
    "fill": """
        mov ecx, edi
        lea rdi, [rsp-120]
        mov al, 7
        .byte f3 aa  # rep stosb
        movzx eax, byte [rsp-120]
        ret
    """,
    "constant": """
        mov eax, 16
        add eax, edi
        ret
    """,
}
